"""Data-parallel training with JAX: each device holds a part of the batch.

On a machine with one device, XLA can split the CPU into several:

    XLA_FLAGS=--xla_force_host_platform_device_count=2 python examples/jax_data_parallel.py
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import onedsl.jax

argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
).parse_args()

EPSILON, RATE = 1e-5, 0.5
CHANNELS = 16

Tree = dict[str, Any]

keys = jax.random.split(jax.random.key(0), 3)
images = jax.random.normal(keys[0], (32, 12, 12, 3))
targets = images.mean((1, 2, 3))
params: Tree = {
    "kernel": jax.random.normal(keys[1], (3, 3, 3, CHANNELS)) / 5,
    "gamma": jnp.ones(CHANNELS),
    "beta": jnp.zeros(CHANNELS),
    "last": jax.random.normal(keys[2], (CHANNELS,)) / CHANNELS**0.5,
}


def loss(params: Tree, images: jax.Array, targets: jax.Array) -> jax.Array:
    """Return the loss of a network that normalizes by the statistics of the whole batch."""
    hidden = jax.lax.conv_general_dilated(
        images, params["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    hidden, _, _ = onedsl.jax.batch_norm(hidden, params["gamma"], params["beta"], epsilon=EPSILON)
    return ((jax.nn.relu(hidden).mean((1, 2)) @ params["last"] - targets) ** 2).mean()


@jax.jit
def step(params: Tree, images: jax.Array, targets: jax.Array) -> tuple[Tree, jax.Array]:
    """Take one step of gradient descent."""
    value, grads = jax.value_and_grad(loss)(params, images, targets)
    return jax.tree.map(lambda p, g: p - RATE * g, params, grads), value


mesh = Mesh(np.array(jax.devices()), ("batch",), axis_types=(AxisType.Auto,))
sharded, replicated = (
    NamedSharding(mesh, PartitionSpec("batch")),
    NamedSharding(mesh, PartitionSpec()),
)
sharded_batch = jax.device_put((images, targets), sharded)
replicated_params = jax.device_put(params, replicated)

on_one_device = step(params, images, targets)[0]
on_all_devices = step(replicated_params, *sharded_batch)[0]
for name in params:
    np.testing.assert_allclose(on_all_devices[name], on_one_device[name], rtol=1e-4, atol=1e-6)
print(f"a step on {len(jax.devices())} devices equals a step on one device")

for number in range(101):
    replicated_params, value = step(replicated_params, *sharded_batch)
    if number % 20 == 0:
        print(f"step {number:3}: loss {value:.5f}")
