"""Train with PyTorch and onedsl's gradient: a layer, a model, and a whole process."""

import torch
from torch import nn

import onedsl.torch

torch.manual_seed(0)
images, labels = torch.randn(16, 3, 32, 32), torch.randint(10, (16,))

# A layer like torch.nn's, with the same parameters and results. onedsl computes its gradient.
theirs, ours = nn.BatchNorm2d(3), onedsl.torch.BatchNorm2d(3)
target = torch.randn_like(images)
for layer in (theirs, ours):
    (layer(images) * target).sum().backward()
print("gradient of a layer's weight, torch: ", theirs.weight.grad.tolist())
print("                             onedsl:", ours.weight.grad.tolist())
torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, rtol=1e-4, atol=1e-3)


def new_model() -> nn.Module:
    """Return a small network, always with the same weights."""
    torch.manual_seed(1)
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, 2, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
    )


def train(model: nn.Module, bfloat16: bool = False) -> list[float]:
    """Train for a few steps and return the losses."""
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
    """Return the packages of a model's batch-norm layers."""
    layers = (type(layer) for layer in model.modules())
    return [layer.__module__.split(".")[0] for layer in layers if "Norm" in layer.__name__]


# Convert an existing model in place. Its parameters and state_dict do not change.
model = new_model()
print("\nbatch norm layers of a model:", norms(model))
onedsl.torch.convert(model)
print("converted:                   ", norms(model))
their_losses, our_losses = train(new_model()), train(model)
print("losses with torch's layers: ", their_losses)
print("losses with onedsl's layers:", our_losses)
torch.testing.assert_close(our_losses, their_losses, rtol=1e-3, atol=1e-3)

# channels_last tensors are not copied, and autocast is supported.
model.to(memory_format=torch.channels_last)
images = images.contiguous(memory_format=torch.channels_last)
print("\nmore steps, channels_last and bfloat16:", train(model, bfloat16=True))

# Restore PyTorch's classes, for tools that support only those.
onedsl.torch.revert(model)
print("reverted:", norms(model))
