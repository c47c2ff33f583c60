"""Compiles with a persistent cache, and prints the numbers of cache hits and misses."""

import sys

import jax

import onedsl.jax
from onedsl import testing

jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
counts = {"hits": 0, "misses": 0}


def count(event, **_):
    for name in counts:
        counts[name] += event == f"/jax/compilation_cache/cache_{name}"


problem = testing.random_problem((4, 3, 8))
jax.monitoring.register_event_listener(count)


def loss(src, gamma):
    """Return a loss that depends on all results."""
    dst, mean, variance = onedsl.jax.batch_norm(src, gamma, epsilon=1e-5)
    return (dst**3).sum() + (mean * variance).sum()


got = jax.jit(jax.grad(loss, (0, 1)))(problem.src, problem.gamma)
print(counts["hits"], counts["misses"])
