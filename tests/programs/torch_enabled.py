"""Trains a model under onedsl.torch.enable() with warnings as errors, and prints "trained"."""

import warnings

import torch
from torch import nn

import onedsl.torch


class Batches(torch.utils.data.Dataset):
    """Images that a batch-norm layer in the worker process has normalized."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return nn.BatchNorm2d(3)(torch.randn(4, 3, 8, 8, generator=generator)).detach()


def main():
    warnings.simplefilter("error")
    # PyTorch's data loader forks its workers.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    onedsl.torch.enable()
    onedsl.torch.disable()
    onedsl.torch.enable()
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
    for batch in torch.utils.data.DataLoader(Batches(), batch_size=None, num_workers=1):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = parallel(batch).float().square().mean()
        loss.backward()
        optimizer.step()
    torch.distributed.destroy_process_group()
    print("trained")


if __name__ == "__main__":
    main()
