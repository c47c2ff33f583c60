"""An Equinox layer with onedsl's batch norm. The running statistics are Equinox state.

They start at 0 and 1 and are used as they are in inference, as in Flax and PyTorch. Equinox's own
layer divides them by ``1 - momentum**steps`` in inference (mode "batch"), or starts with those of
the first batch (mode "ema").
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import onedsl.jax


class BatchNorm(eqx.Module):
    """Batch normalization of a whole batch with channels last, without vmap and axis_name."""

    gamma: jax.Array
    beta: jax.Array
    running: eqx.nn.StateIndex
    epsilon: float = eqx.field(static=True)
    momentum: float = eqx.field(static=True)
    inference: bool

    def __init__(self, channels: int, epsilon: float = 1e-5, momentum: float = 0.9) -> None:
        """Create a layer with scale 1 and shift 0."""
        self.gamma, self.beta = jnp.ones(channels), jnp.zeros(channels)
        self.running = eqx.nn.StateIndex((jnp.zeros(channels), jnp.ones(channels)))
        self.epsilon, self.momentum, self.inference = epsilon, momentum, False

    def __call__(self, src: jax.Array, state: eqx.nn.State) -> tuple[jax.Array, eqx.nn.State]:
        """Normalize by the batch statistics in training, and by the running ones in inference."""
        running = state.get(self.running)
        mean, variance = running
        if self.inference:
            dst = onedsl.jax.batch_norm_frozen(
                src, mean, variance, self.gamma, self.beta, epsilon=self.epsilon
            )
            return dst, state
        dst, *batch = onedsl.jax.batch_norm(src, self.gamma, self.beta, epsilon=self.epsilon)
        keep = self.momentum
        moved = jax.tree.map(lambda old, new: keep * old + (1 - keep) * new, running, tuple(batch))
        return dst, state.set(self.running, moved)


class Network(eqx.Module):
    """Two dense layers around it."""

    first: jax.Array
    norm: BatchNorm
    last: jax.Array

    def __init__(self, key: jax.Array) -> None:
        """Create a network with random weights."""
        one, two = jax.random.split(key)
        self.first = jax.random.normal(one, (2, 32))
        self.norm = BatchNorm(32)
        self.last = jax.random.normal(two, (32,)) / 32**0.5

    def __call__(self, points: jax.Array, state: eqx.nn.State) -> tuple[jax.Array, eqx.nn.State]:
        """Return a number for each point."""
        hidden, state = self.norm(points @ self.first, state)
        return jax.nn.relu(hidden) @ self.last, state


def loss(
    network: Network, state: eqx.nn.State, points: jax.Array, targets: jax.Array
) -> tuple[jax.Array, eqx.nn.State]:
    """Return the mean squared error and the updated state."""
    results, state = network(points, state)
    return ((results - targets) ** 2).mean(), state


@eqx.filter_jit
def step(
    network: Network, state: eqx.nn.State, points: jax.Array, targets: jax.Array
) -> tuple[Network, eqx.nn.State, jax.Array]:
    """Take one step of gradient descent."""
    differentiate = eqx.filter_value_and_grad(loss, has_aux=True)
    (value, state), grads = differentiate(network, state, points, targets)
    changes = jax.tree.map(lambda gradient: -0.1 * gradient, grads)
    return eqx.apply_updates(network, changes), state, value


points = jax.random.normal(jax.random.key(0), (256, 2))
targets = jnp.sin(points.sum(1))
network, state = eqx.nn.make_with_state(Network)(jax.random.key(1))
for number in range(101):
    network, state, value = step(network, state, points, targets)
    if number % 20 == 0:
        print(f"step {number:3}: loss {value:.4f}")

mean, _ = state.get(network.norm.running)
np.testing.assert_allclose(mean, (points @ network.first).mean(0), rtol=0.2, atol=0.05)
in_inference = eqx.nn.inference_mode(network)
print(f"with the running statistics: {loss(in_inference, state, points, targets)[0]:.4f}")
