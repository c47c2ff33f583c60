"""PyTorch with onedsl's gradient: a layer, a whole model, and a few steps of training."""

import torch
from torch import nn

import onedsl.torch

torch.manual_seed(0)
images, labels = torch.randn(16, 3, 32, 32), torch.randint(10, (16,))

# A layer: torch.nn's, with the same parameters and results. Only the gradient is onedsl's.
theirs, ours = nn.BatchNorm2d(3), onedsl.torch.BatchNorm2d(3)
target = torch.randn_like(images)
for layer in (theirs, ours):
    (layer(images) * target).sum().backward()
print("a layer's gradient of weight, by torch: ", theirs.weight.grad.tolist())
print("                              by onedsl:", ours.weight.grad.tolist())
torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, rtol=1e-4, atol=1e-3)


def new_model() -> nn.Module:
    """Make the same small network every time."""
    torch.manual_seed(1)
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, 2, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
    )


def train(model: nn.Module, bfloat16: bool = False) -> list[float]:
    """Take a few steps, and give the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(5):
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(round(loss.item(), 5))
    return losses


def norms(model: nn.Module) -> list[str]:
    """Name the packages that a model's batch norms are from."""
    layers = (type(layer) for layer in model.modules())
    return [layer.__module__.split(".")[0] for layer in layers if "Norm" in layer.__name__]


# A model that is there already: one line, in place. Parameters and state_dict stay as they are.
model = new_model()
print("\nbatch norms of a model:", norms(model))
onedsl.torch.convert(model)
print("converted:             ", norms(model))
their_losses, our_losses = train(new_model()), train(model)
print("losses with torch's layers: ", their_losses)
print("losses with onedsl's layers:", our_losses)
torch.testing.assert_close(our_losses, their_losses, rtol=1e-3, atol=1e-3)

# Memory in the order channels_last is used where it lies, and autocast works as ever.
model.to(memory_format=torch.channels_last)
images = images.contiguous(memory_format=torch.channels_last)
print("\nmore steps, channels_last and bfloat16:", train(model, bfloat16=True))

# And back again, for tools that know PyTorch's own classes alone.
onedsl.torch.revert(model)
print("reverted:", norms(model))
