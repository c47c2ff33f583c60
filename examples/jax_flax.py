"""Training of a small residual network for handwritten digits, with Flax and onedsl's layers."""

import argparse
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

import onedsl.flax

argparse.ArgumentParser(description=__doc__).parse_args()

TRAINING, CHANNELS, BATCH, EPOCHS = 1500, 16, 50, 8


class Network(nnx.Module):
    """Two convolutions, the second one in a residual block."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        """Create a network with random weights."""
        conv = functools.partial(nnx.Conv, kernel_size=(3, 3), use_bias=False, rngs=rngs)
        norm = functools.partial(onedsl.flax.nnx.BatchNorm, activation="relu", momentum=0.9)
        self.first, self.first_norm = conv(1, CHANNELS), norm(CHANNELS, rngs=rngs)
        self.second, self.second_norm = conv(CHANNELS, CHANNELS), norm(CHANNELS, rngs=rngs)
        self.last = nnx.Linear(CHANNELS, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Return the logits of the digits."""
        hidden = self.first_norm(self.first(images))
        # ReLU, batch norm and the addition are one call.
        hidden = self.second_norm(self.second(hidden), residual=hidden)
        logits: jax.Array = self.last(hidden.mean((1, 2)))
        return logits


@nnx.jit
def step(
    network: Network, optimizer: nnx.Optimizer, images: jax.Array, labels: jax.Array
) -> jax.Array:
    """Take one step of training, which also updates the running statistics."""

    def loss(network: Network) -> jax.Array:
        logits = network(images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    value, grads = nnx.value_and_grad(loss)(network)
    optimizer.update(network, grads)
    result: jax.Array = value
    return result


@nnx.jit
def accuracy(network: Network, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the share of the images that the network recognizes."""
    return (network(images).argmax(1) == labels).mean()


digits = load_digits()
order = np.random.default_rng(0).permutation(len(digits.target))
images = jnp.asarray(digits.images[order, ..., None] / 16, jnp.float32)
labels = jnp.asarray(digits.target[order])

network = Network(nnx.Rngs(0))
schedule = optax.linear_schedule(0.02, 0, EPOCHS * TRAINING // BATCH)
optimizer = nnx.Optimizer(network, optax.adam(schedule), wrt=nnx.Param)
for epoch in range(1, EPOCHS + 1):
    network.train()
    for start in range(0, TRAINING, BATCH):
        batch = slice(start, start + BATCH)
        value = step(network, optimizer, images[batch], labels[batch])
    network.eval()  # normalize by the running statistics
    share = accuracy(network, images[TRAINING:], labels[TRAINING:])
    print(f"epoch {epoch}: loss {value:.3f}, accuracy {share:.1%}")
