"""Times training steps of two networks with Flax's batch norm and with onedsl's, under jit.

The networks are "wide", four 1x1 convolutions of 64 to 128 channels, and "residual", three stages
of two residual blocks with 32 to 128 channels, as in ResNet-18. Each step has 16 images of 64x64.
Steps of both kinds alternate in one process. A time is the mean of the fastest quarter of the
steps. Set GLIBC_TUNABLES=glibc.malloc.hugetlb=1 (glibc 2.35 or newer) for huge pages.
"""

import argparse
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from training_steps import fastest

import onedsl.flax

NETWORKS = ["wide", "residual"]


class Flax(nnx.Module):
    """Flax's batch norm, an addition and a ReLU."""

    def __init__(self, channels: int, rngs: nnx.Rngs) -> None:
        """Create a layer."""
        self.norm = nnx.BatchNorm(channels, momentum=0.9, rngs=rngs)

    def __call__(self, x: jax.Array, residual: jax.Array | None = None) -> jax.Array:
        """Normalize, add and apply the ReLU."""
        y = self.norm(x)
        return nnx.relu(y if residual is None else y + residual)


def onedsl_layer(channels: int, rngs: nnx.Rngs) -> Any:
    """Return onedsl's layer of the same."""
    return onedsl.flax.nnx.BatchNorm(channels, momentum=0.9, activation="relu", rngs=rngs)


class Network(nnx.Module):
    """Convolutions with batch norm and ReLU, and a linear layer."""

    def __init__(self, name: str, layer: Any) -> None:
        """Create a network with random weights."""
        rngs = nnx.Rngs(0)
        convolutions, norms, residual = [], [], []

        def add(i: int, o: int, kernel: int, stride: int = 1, *, is_last: bool = False) -> None:
            sizes = {"kernel_size": (kernel, kernel), "strides": (stride, stride)}
            convolutions.append(nnx.Conv(i, o, **sizes, use_bias=False, rngs=rngs))
            norms.append(layer(o, rngs=rngs))
            residual.append(is_last)

        i = 3
        if name == "wide":
            for o in (64, 64, 128, 128):
                add(i, o, 1)
                i = o
        else:
            for o in (32, 64, 128):
                add(i, o, 3, 2)
                for _ in range(2):
                    add(o, o, 3)
                    add(o, o, 3, is_last=True)
                i = o
        self.convolutions, self.norms = nnx.List(convolutions), nnx.List(norms)
        self.residual = tuple(residual)
        self.last = nnx.Linear(i, 100, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the logits of the classes."""
        before = x
        for conv, norm, is_last in zip(self.convolutions, self.norms, self.residual, strict=True):
            if is_last:
                before = x = norm(conv(x), residual=before)
            else:
                before, x = (x, norm(conv(x)))
        logits: jax.Array = self.last(x.mean((1, 2)))
        return logits


@nnx.jit
def step(network: Network, optimizer: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Take one step of training, which also updates the running statistics."""

    def loss(network: Network) -> jax.Array:
        logits = network(images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    value, grads = nnx.value_and_grad(loss)(network)
    optimizer.update(network, grads)
    result: jax.Array = value
    return result


def main() -> None:
    """Parse the command line, and time the steps of each network."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    if unknown := [name for name in options.networks if name not in NETWORKS]:
        parser.error(f"a network must be one of {', '.join(NETWORKS)}, got {unknown[0]}")
    images = jax.random.normal(jax.random.key(0), (16, 64, 64, 3))
    labels = jnp.arange(16)
    for name in options.networks:
        kinds = {"Flax": Flax, "onedsl": onedsl_layer}
        networks = {kind: Network(name, layer) for kind, layer in kinds.items()}
        optimizers = {
            kind: nnx.Optimizer(network, optax.sgd(0.01), wrt=nnx.Param)
            for kind, network in networks.items()
        }
        times: dict[str, list[float]] = {kind: [] for kind in kinds}
        losses: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(3 + options.steps):
            for kind, network in networks.items():
                begin = time.perf_counter()
                value = step(network, optimizers[kind], images, labels)
                losses[kind].append(float(value))  # waits for the result
                times[kind].append((time.perf_counter() - begin) * 1e3)
        flax, ours = (statistics.mean(fastest(times[kind][3:])) for kind in kinds)
        difference = abs(losses["Flax"][0] - losses["onedsl"][0])
        print(
            f"{name:10} Flax {flax:7.1f} ms  onedsl {ours:7.1f} ms  speed-up {flax / ours:.2f}"
            f"  (the first losses differ by {difference:.0e})"
        )


if __name__ == "__main__":
    main()
