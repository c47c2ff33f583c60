"""Makes calls of the public functions in which one allocation fails: the first, then the second...

    python tests/programs/failing_allocation.py [--verbose] DOOR...

Each call must return the right result or raise the exception of its library for a lack of memory,
and the next call must work. Needs failing_allocation.c, loaded before everything else, and
PYTHONMALLOC=malloc. With STACKS=1 the stacks of the allocations go to stderr.

Counted are the allocations of onedsl's extension and of what it calls, and of calls with NumPy's
arrays also all others.
"""

import collections
import ctypes
import functools
import itertools
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import onedsl
from onedsl import testing
from onedsl.graph import compiled_graph

fail = ctypes.CDLL(None).fail_allocation
fail.restype, fail.argtypes = ctypes.c_long, (ctypes.c_long, ctypes.c_char_p, ctypes.c_char_p)

op = onedsl.BatchNormTrainingBackward(1e-5)
problem = testing.random_problem((8, 6, 5, 16))
large_src = testing.random_problem((8, 80, 80, 16)).src
spec = onedsl.TensorSpec(problem.src.shape)
wide = [np.ones(shape, np.float32) for shape in ((4, 5000), (4, 5000), (5000,), (5000,))]


# ---- Doors: functions that return arrays, or an error message ----


def call():
    return op(*problem)


def out():
    return op(*problem, out=tuple(map(np.empty_like, (problem.src, problem.mean, problem.mean))))


def copied():
    """An unaligned src and a strided mean, which are copied."""
    memory = np.zeros(problem.src.nbytes + 1, np.uint8)
    src = memory[1:].view(np.float32).reshape(problem.src.shape)
    src[...] = problem.src
    return op(src, problem.diff_dst, np.repeat(problem.mean, 2)[::2], *problem[3:])


def strided():
    return op(problem.src, problem.diff_dst[::-1, ::-1], *problem[2:])


def copied_back():
    """A result whose strides the kernels cannot write."""
    wide = np.empty((*problem.src.shape[:-1], 2 * problem.src.shape[-1]), np.float32)
    out = wide[..., ::2], np.empty_like(problem.mean), np.empty_like(problem.mean)
    return op(*problem, out=out)


def scratch():
    """More channels than have their sums on the stack."""
    return op(*wide)


def rejected():
    try:
        op(problem.src, problem.diff_dst[1:], *problem[2:])
    except ValueError as error:
        return [str(error)]
    raise AssertionError


def parts():
    sums = op.reduce(*problem[:4])
    return op.apply(onedsl.BatchNormSums.from_vector(sums.to_vector()), *problem)


def operator():
    return [repr(onedsl.BatchNormActForwardTraining(1e-5, clip=6.0, activation="relu"))]


def verbose():
    with onedsl.verbose():
        return op(*problem)


def onednn():
    return op(*problem, backend="onednn")


def graph():
    return compiled()(**problem._asdict()).values()


def graph_out():
    return compiled()(**problem._asdict(), out={"diff_src": np.empty_like(problem.src)}).values()


def graph_compiled():
    compiled_graph._compile.cache_clear()
    return [str(op.graph(spec).repaired().compile())]


@functools.cache
def compiled():
    return op.graph(spec).repaired().compile()


def tensors():
    """Tensors of PyTorch."""
    return op(*torch_problem())


@functools.cache
def torch_problem():
    import torch

    return [torch.from_numpy(np.array(array)) for array in problem]


def tensors_of_graph():
    """Tensors of PyTorch, in a graph."""
    return compiled()(**dict(zip(problem._fields, torch_problem(), strict=True))).values()


def report():
    """Calls in PyTorch that are counted while `enable` is in effect, which ends with its block."""
    import onedsl.torch

    layer, src = layer_and_src("plain", False)
    with onedsl.torch.enable(), onedsl.torch.report(layer) as counted:
        dst = layer(src)
    return dst.detach(), str(counted.calls()), str(onedsl.torch.enabled())


def step(kind, large):
    """A training step in PyTorch."""
    import torch

    layer, src = layer_and_src(kind, large)
    dst = layer(src)
    inputs = [src, *layer.parameters()]
    return dst.detach(), *torch.autograd.grad(dst.square().sum(), inputs)


@functools.cache
def layer_and_src(kind, large):
    import torch
    from torch import nn

    import onedsl.torch

    torch.set_num_threads(1)
    src = torch.randn(8, 16, 40, 40 if large else 4, requires_grad=True)
    if kind == "plain":
        return nn.BatchNorm2d(16), src
    if kind == "enable":
        onedsl.torch.enable()
        return nn.BatchNorm2d(16), src
    if kind == "layer":
        return onedsl.torch.BatchNormAct2d(16, activation="relu"), src
    model = nn.Sequential(nn.BatchNorm2d(16), nn.ReLU())
    return torch.compile(model, backend="onedsl"), src


def jax_small():
    return jax_step(problem.src)


def jax_large():
    """The loops run on XLA's pool."""
    return jax_step(large_src)


def jax_alone():
    """The same in a process that has one CPU, for which XLA makes no second thread."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return jax_step(large_src)


def jax_step(src):
    """A gradient in JAX."""
    import jax

    return jax.block_until_ready(jax_function()(src, np.ones(16), np.zeros(16)))


@functools.cache
def jax_function():
    import jax
    import jax.numpy as jnp

    import onedsl.jax

    def loss(*inputs):
        return jnp.square(onedsl.jax.batch_norm(*inputs, epsilon=1e-5)[0]).sum()

    return jax.jit(jax.grad(loss, (0, 1, 2)))


NUMPY = (
    *(call, out, copied, copied_back, strided, scratch, rejected, parts, operator, verbose),
    *(onednn, graph, graph_out),
)
ENTRY_POINTS: dict[str, Callable[[], Any]] = {
    entry.__name__: entry
    for entry in (
        *(*NUMPY, graph_compiled, tensors, tensors_of_graph, report),
        *(jax_small, jax_large, jax_alone),
    )
}
ENTRY_POINTS |= {
    f"{kind}_{size}": functools.partial(step, kind, size == "large")
    for kind in ("enable", "layer", "compiled")
    for size in ("small", "large")
}


# ---- The sweep ----


def values(results: Any) -> list[Any]:
    return [r if isinstance(r, str) else np.asarray(r).tobytes() for r in results if r is not None]


def stop() -> int:
    """Let no further allocation fail, and return their number."""
    while True:
        try:
            return int(fail(0, None, None))
        except Exception:  # this allocation has failed
            continue


def attempts(entry: Callable[[], Any], *libraries: bytes | None) -> Iterator[BaseException | None]:
    """Call an entry point until no allocation fails, and yield the exceptions."""
    expected = values(entry())
    assert values(entry()) == expected
    for n in itertools.count(1):
        os.write(1, b"%d\r" % n)
        error = results = None
        fail(n, *libraries)
        try:
            results = entry()
        except BaseException as raised:
            error = raised
        if stop() < n:
            return
        assert error is not None or values(results) == expected
        results = None
        assert values(entry()) == expected, f"the call after {error!r}"
        yield error
        error = None


def is_right(error: BaseException | None, entry: str, is_ours: bool) -> bool:
    """Return whether an exception is one for a lack of memory."""
    if error is None or isinstance(error, MemoryError):
        return True
    if not is_ours:  # CPython raises SystemError if a traceback cannot be allocated
        return isinstance(error, SystemError)
    if entry.startswith("jax"):
        return "RESOURCE_EXHAUSTED" in str(error)
    texts = "DefaultCPUAllocator: can't allocate memory", "bad_alloc", "Failed to allocate"
    torch_entries = "tensors", "tensors_of_graph", "report"
    is_of_torch = isinstance(ENTRY_POINTS[entry], functools.partial) or entry in torch_entries
    has_text = any(text in str(error) for text in texts)
    return is_of_torch and isinstance(error, RuntimeError) and has_text


def sweep(entry: str, is_ours: bool) -> None:
    # oneDNN frees memory twice if some of the allocations fail in which it compiles a graph.
    outside = b"libdnnl" if entry == "graph_compiled" else None
    outcomes = collections.Counter[str]()
    for error in attempts(ENTRY_POINTS[entry], b"/_core." if is_ours else None, outside):
        assert is_right(error, entry, is_ours), repr(error)
        outcomes["right" if error is None else f"{type(error).__name__}: {error}"[:60]] += 1
    print(entry, "onedsl's" if is_ours else "all", sum(outcomes.values()), "allocations")
    if "--verbose" in sys.argv:
        for text, count in outcomes.most_common():
            print(f"    {count} {text}")


logging.getLogger("onedsl").addHandler(logging.NullHandler())
for name in sys.argv[1:]:
    if name in ENTRY_POINTS:
        for is_ours in (True, False) if ENTRY_POINTS[name] in NUMPY else (True,):
            sweep(name, is_ours)
print("done")
