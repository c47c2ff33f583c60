"""Training of a small network with JAX and onedsl's batch norm, under jit."""

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import onedsl.jax

argparse.ArgumentParser(description=__doc__).parse_args()

EPSILON, RATE, TRACKING = 1e-5, 0.1, 0.1
CHANNELS, CLASSES = 32, 4

Tree = dict[str, Any]
BatchNorm = Callable[..., tuple[jax.Array, jax.Array, jax.Array]]

keys = jax.random.split(jax.random.key(0), 3)
points = jax.random.normal(keys[0], (256, 2))
labels = (points[:, 0] > 0).astype(int) + 2 * (points[:, 1] > 0)  # the quadrant
params: Tree = {
    "first": jax.random.normal(keys[1], (2, CHANNELS)),
    "gamma": jnp.ones(CHANNELS),
    "beta": jnp.zeros(CHANNELS),
    "last": jax.random.normal(keys[2], (CHANNELS, CLASSES)) / CHANNELS**0.5,
}
running: Tree = {"mean": jnp.zeros(CHANNELS), "variance": jnp.ones(CHANNELS)}


def loss(params: Tree, batch_norm: BatchNorm = onedsl.jax.batch_norm) -> tuple[jax.Array, Tree]:
    """Return the training loss and the batch statistics."""
    hidden, mean, variance = batch_norm(
        points @ params["first"], params["gamma"], params["beta"], epsilon=EPSILON
    )
    logs = jax.nn.log_softmax(jax.nn.relu(hidden) @ params["last"])
    chosen = jnp.take_along_axis(logs, labels[:, None], axis=1)
    return -chosen.mean(), {"mean": mean, "variance": variance}


@jax.jit
def step(params: Tree, running: Tree) -> tuple[Tree, Tree, jax.Array]:
    """Take one step of gradient descent, and update the running statistics."""
    (value, batch), grads = jax.value_and_grad(loss, has_aux=True)(params)
    params = jax.tree.map(lambda p, g: p - RATE * g, params, grads)
    running = jax.tree.map(lambda old, new: old + TRACKING * (new - old), running, batch)
    return params, running, value


@jax.jit
def accuracy(params: Tree, running: Tree) -> jax.Array:
    """Return the accuracy in inference, which normalizes by the running statistics."""
    hidden = onedsl.jax.batch_norm_frozen(
        points @ params["first"], running["mean"], running["variance"],
        params["gamma"], params["beta"], epsilon=EPSILON,
    )  # fmt: skip
    return (jnp.argmax(jax.nn.relu(hidden) @ params["last"], axis=1) == labels).mean()


def plain(src: Any, gamma: Any, beta: Any, *, epsilon: float) -> tuple[Any, Any, Any]:
    """Compute batch norm with jax.numpy, which JAX differentiates itself."""
    mean, variance = src.mean(0), src.var(0)
    return gamma * (src - mean) / jnp.sqrt(variance + epsilon) + beta, mean, variance


ours = jax.grad(loss, has_aux=True)(params)[0]
theirs = jax.grad(lambda tree: loss(tree, plain)[0])(params)
for name in params:
    np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-3, atol=1e-5)
print("onedsl's gradients of", ", ".join(params), "equal those of jax.numpy")

for number in range(101):
    params, running, value = step(params, running)
    if number % 20 == 0:
        print(f"step {number:3}: loss {value:.4f}, accuracy {accuracy(params, running):.0%}")
