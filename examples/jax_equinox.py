"""A layer for Equinox, with onedsl's batch norm: parameters, and running statistics as state."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import onedsl.jax


class BatchNorm(eqx.Module):
    """Takes a whole batch with its channels last, and needs no vmap and no axis_name."""

    gamma: jax.Array
    beta: jax.Array
    running: eqx.nn.StateIndex
    epsilon: float = eqx.field(static=True)
    momentum: float = eqx.field(static=True)
    inference: bool

    def __init__(self, channels: int, epsilon: float = 1e-5, momentum: float = 0.9) -> None:
        """Start from no scale and no shift."""
        self.gamma, self.beta = jnp.ones(channels), jnp.zeros(channels)
        self.running = eqx.nn.StateIndex((jnp.zeros(channels), jnp.ones(channels)))
        self.epsilon, self.momentum, self.inference = epsilon, momentum, False

    def __call__(self, src: jax.Array, state: eqx.nn.State) -> tuple[jax.Array, eqx.nn.State]:
        """Normalize by the batch's statistics in training, and by the running ones in use."""
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
        """Draw the weights."""
        one, two = jax.random.split(key)
        self.first = jax.random.normal(one, (2, 32))
        self.norm = BatchNorm(32)
        self.last = jax.random.normal(two, (32,)) / 32**0.5

    def __call__(self, points: jax.Array, state: eqx.nn.State) -> tuple[jax.Array, eqx.nn.State]:
        """Give a number for each point."""
        hidden, state = self.norm(points @ self.first, state)
        return jax.nn.relu(hidden) @ self.last, state


def loss(
    network: Network, state: eqx.nn.State, points: jax.Array, targets: jax.Array
) -> tuple[jax.Array, eqx.nn.State]:
    """Give the mean square, and the state after the batch."""
    results, state = network(points, state)
    return ((results - targets) ** 2).mean(), state


@eqx.filter_jit
def step(
    network: Network, state: eqx.nn.State, points: jax.Array, targets: jax.Array
) -> tuple[Network, eqx.nn.State, jax.Array]:
    """Go down the gradient."""
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
in_use = eqx.nn.inference_mode(network)
print(f"with the running statistics: {loss(in_use, state, points, targets)[0]:.4f}")
