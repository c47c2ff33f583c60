"""A program with JAX that type checkers accept and that runs."""

from typing import assert_type

import jax
import numpy as np
import numpy.typing as npt

import onedsl
import onedsl.jax


def operators(x: jax.Array, ones: jax.Array) -> None:
    op = onedsl.BatchNormTrainingBackward(1e-5)
    grads = op(x, x, ones, ones, ones)
    assert_type(grads, onedsl.BatchNormGradients[jax.Array])
    assert_type(grads.diff_src, jax.Array)
    assert_type(op.graph(onedsl.TensorSpec.of(x)), onedsl.graph.Graph)
    onedsl.BatchNormTrainingBackprop(1e-5)(x, x, ones, ones)
    onedsl.BatchNormalizationGrad(1e-5)(x, x, ones[None], ones[None], ones[None])


def package(x: jax.Array, ones: jax.Array) -> None:
    dst, mean, variance = onedsl.jax.batch_norm(x, ones, ones, epsilon=1e-5, data_format="NCX")
    assert_type(dst, jax.Array)
    onedsl.jax.batch_norm(x, epsilon=1e-5, activation="relu", clip=6.0, residual=x)
    frozen = onedsl.jax.batch_norm_frozen(x, mean, variance, ones, epsilon=1e-5)
    assert_type(frozen, jax.Array)
    grads = onedsl.jax.batch_norm_backward(x, x, mean, variance, epsilon=1e-5, statistics="frozen")
    assert_type(grads.diff_src, jax.Array)


def numpy_arrays(x: npt.NDArray[np.float32], ones: npt.NDArray[np.float32]) -> None:
    onedsl.jax.batch_norm(x, ones, ones, epsilon=1e-5)
    onedsl.jax.batch_norm_frozen(x, ones, ones, epsilon=1e-5)
    onedsl.jax.batch_norm_backward(x, x, ones, ones, ones, epsilon=1e-5)


def main() -> None:
    x, ones = np.ones((4, 3), np.float32), np.ones(3, np.float32)
    numpy_arrays(x, ones)
    # The type of device_put is partially unknown in JAX.
    jax_x: jax.Array = jax.device_put(x)  # pyright: ignore[reportUnknownMemberType]
    jax_ones: jax.Array = jax.device_put(ones)  # pyright: ignore[reportUnknownMemberType]
    operators(jax_x, jax_ones)
    package(jax_x, jax_ones)


if __name__ == "__main__":
    main()
