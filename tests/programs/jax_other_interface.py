"""Next to a JAX whose header has another version: the call goes by way of Python."""

import sys
from pathlib import Path

import jax

header = Path(sys.argv[1], "xla/ffi/api/c_api.h")
header.parent.mkdir(parents=True)
header.write_text("#define XLA_FFI_API_MAJOR 1\n#define XLA_FFI_API_MINOR 0\n")
jax.ffi.include_dir = lambda: sys.argv[1]

import onedsl.jax  # noqa: E402
from onedsl import testing  # noqa: E402

EPSILON = 1e-5


def grads(src, gamma, beta, diff_dst):
    """Differentiate the layer, whose forward pass is a call too."""

    def loss(src, gamma, beta):
        return (onedsl.jax.batch_norm(src, gamma, beta, epsilon=EPSILON)[0] * diff_dst).sum()

    return jax.grad(loss, (0, 1, 2))(src, gamma, beta)


for shape in [(4, 3, 8), (16, 8), (0, 8)]:
    problem = testing.random_problem(shape)
    src, diff_dst, _, _, gamma = problem
    program = jax.jit(grads)
    text = program.lower(src, gamma, gamma, diff_dst).as_text()
    assert "onedsl" not in text
    assert text.count("custom_call @xla_buffer_python_cpu_callback") == 2
    got = onedsl.BatchNormGradients(*program(src, gamma, gamma, diff_dst))
    testing.assert_gradients_close(got, testing.batch_norm_backward(*problem, epsilon=EPSILON))
    batch = jax.vmap(grads, (0, None, None, 0))(src[None], gamma, gamma, diff_dst[None])
    for one, all_of_them in zip(got, batch, strict=True):
        assert (one == all_of_them[0]).all()
