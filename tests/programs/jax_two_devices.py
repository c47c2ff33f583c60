"""A batch that is split over two devices; XLA_FLAGS of the caller makes them."""

import functools

import jax
from jax.sharding import NamedSharding, PartitionSpec

import onedsl.jax
from onedsl import testing

problem = testing.random_problem((4, 3, 8))
mesh = jax.make_mesh((2,), ("batch",), (jax.sharding.AxisType.Auto,))
split = NamedSharding(mesh, PartitionSpec("batch"))
src, diff_dst = (jax.device_put(a, split) for a in problem[:2])
call = functools.partial(onedsl.jax.batch_norm_backward, epsilon=1e-5)
got = jax.jit(call)(src, diff_dst, *problem[2:])
testing.assert_gradients_close(got, testing.batch_norm_backward(*problem, epsilon=1e-5))
