"""Training of a small residual network for handwritten digits, with Equinox and onedsl's layer."""

import argparse
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import onedsl.equinox

argparse.ArgumentParser(description=__doc__).parse_args()

TRAINING, CHANNELS, BATCH, EPOCHS, RATE = 1500, 16, 50, 8, 1.0


class Network(eqx.Module):
    """Two convolutions, the second one in a residual block."""

    first: eqx.nn.Conv2d
    first_norm: onedsl.equinox.BatchNorm
    second: eqx.nn.Conv2d
    second_norm: onedsl.equinox.BatchNorm
    last: eqx.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        """Create a network with random weights."""
        one, two, three = jax.random.split(key, 3)
        conv = functools.partial(eqx.nn.Conv2d, kernel_size=3, padding=1, use_bias=False)
        norm = functools.partial(
            onedsl.equinox.BatchNorm, mode="batch", activation="relu", momentum=0.9
        )
        self.first, self.first_norm = conv(1, CHANNELS, key=one), norm(CHANNELS, "batch")
        self.second, self.second_norm = conv(CHANNELS, CHANNELS, key=two), norm(CHANNELS, "batch")
        self.last = eqx.nn.Linear(CHANNELS, 10, key=three)

    def __call__(self, image: jax.Array, state: eqx.nn.State) -> tuple[jax.Array, eqx.nn.State]:
        """Return the logits of one image, and the new running statistics."""
        hidden, state = self.first_norm(self.first(image), state)
        # ReLU, batch norm and the addition are one call for the whole batch.
        hidden, state = self.second_norm(self.second(hidden), state, residual=hidden)
        return self.last(hidden.mean((1, 2))), state


def of_batch(
    network: Network, state: eqx.nn.State, images: jax.Array
) -> tuple[jax.Array, eqx.nn.State]:
    """Return the logits of a batch, and the new running statistics."""
    call = jax.vmap(network, in_axes=(0, None), out_axes=(0, None), axis_name="batch")
    logits, state = call(images, state)
    return logits, state


def loss(
    network: Network, state: eqx.nn.State, images: jax.Array, labels: jax.Array
) -> tuple[jax.Array, eqx.nn.State]:
    """Return the cross entropy and the new running statistics."""
    logits, state = of_batch(network, state, images)
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)
    return -chosen.mean(), state


@eqx.filter_jit
def step(
    network: Network, state: eqx.nn.State, images: jax.Array, labels: jax.Array, rate: jax.Array
) -> tuple[Network, eqx.nn.State, jax.Array]:
    """Take one step of gradient descent."""
    differentiate = eqx.filter_value_and_grad(loss, has_aux=True)
    (value, state), grads = differentiate(network, state, images, labels)
    changes = jax.tree.map(lambda gradient: -rate * gradient, grads)
    return eqx.apply_updates(network, changes), state, value


@eqx.filter_jit
def accuracy(
    network: Network, state: eqx.nn.State, images: jax.Array, labels: jax.Array
) -> jax.Array:
    """Return the share of the images that the network recognizes in inference."""
    logits, _ = of_batch(eqx.nn.inference_mode(network), state, images)
    return (logits.argmax(1) == labels).mean()


digits = load_digits()
order = np.random.default_rng(0).permutation(len(digits.target))
images = jnp.asarray(digits.images[order, None] / 16, jnp.float32)
labels = jnp.asarray(digits.target[order])

network, state = eqx.nn.make_with_state(Network)(jax.random.key(0))
for epoch in range(1, EPOCHS + 1):
    rate = jnp.float32(RATE * (1 - (epoch - 1) / EPOCHS))
    for start in range(0, TRAINING, BATCH):
        batch = slice(start, start + BATCH)
        network, state, value = step(network, state, images[batch], labels[batch], rate)
    share = accuracy(network, state, images[TRAINING:], labels[TRAINING:])
    print(f"epoch {epoch}: loss {value:.3f}, accuracy {share:.1%}")
