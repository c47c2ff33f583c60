"""A program with PyTorch that type checkers accept and that runs."""

from typing import TYPE_CHECKING, assert_type

import torch

import onedsl
import onedsl.torch


def operators(x: torch.Tensor, ones: torch.Tensor) -> None:
    op = onedsl.BatchNormTrainingBackward(1e-5)
    grads = op(x, x, ones, ones, ones)
    assert_type(grads, onedsl.BatchNormGradients[torch.Tensor])
    op(x, x, ones, ones, out=(torch.empty(4, 3), torch.empty(3), torch.empty(3)))
    assert_type(op(x, x, ones, ones, ones, out=grads).diff_src, torch.Tensor)
    assert_type(op.graph(onedsl.TensorSpec.of(x)), onedsl.graph.Graph)
    onedsl.BatchNormTrainingBackprop(1e-5)(x, x, ones, ones)
    onedsl.BatchNormalizationGrad(1e-5)(x, x, ones[None], ones[None], ones[None])


def package(x: torch.Tensor, ones: torch.Tensor) -> None:
    gradient = onedsl.torch.batch_norm_backward
    mask = True, False, True
    grads = gradient(x, x, ones, ones, epsilon=1e-5, statistics="frozen", output_mask=mask)
    assert_type(grads, onedsl.BatchNormGradients[torch.Tensor])
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    assert_type(onedsl.torch.SyncBatchNorm.convert_sync_batchnorm(model), torch.nn.Module)
    with onedsl.torch.enable(huge_pages=False):
        assert_type(onedsl.torch.enabled(), bool)
    onedsl.torch.disable()
    for layer in (
        onedsl.torch.BatchNormAct1d(3, 1e-3, affine=False, activation="silu"),
        onedsl.torch.BatchNormAct2d(3, activation="relu", clip=6.0),
        onedsl.torch.BatchNormAct3d(3, activation="leaky_relu", negative_slope=0.1),
        onedsl.torch.SyncBatchNorm(3, process_group=None),
    ):
        print(layer.num_features, layer.eps)
    if TYPE_CHECKING:
        onedsl.torch.BatchNormAct2d(8, activation="nothing")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        onedsl.torch.BatchNormAct2d(8, epsilon=1e-3, activation="relu")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def main() -> None:
    x, ones = torch.ones(4, 3), torch.ones(3)
    operators(x, ones)
    package(x, ones)


if __name__ == "__main__":
    main()
