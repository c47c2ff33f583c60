"""Memory: axis orders, strides, copies, in-place runs, temporaries.

The laws have four layouts. Here are all orders and kinds of strides, what is copied, and what is
allocated.
"""

import itertools
import logging

import helpers
import numpy as np
import pytest
from helpers import EPSILON, formats, in_order, unaligned, usable

import onedsl
from onedsl import _core, testing
from onedsl.tensors.arrays import aligned_like, new_array


@pytest.fixture
def no_copies(caplog):
    """Fail if the log of the package reports a copy."""
    caplog.set_level(logging.INFO, logger="onedsl")
    yield
    assert caplog.text == ""


@usable()
@formats
@pytest.mark.parametrize("channels", [1, 10])
def test_every_dense_order(dtype, data_format, channels, backend, no_copies):
    """The orders include channels_last (0231 of NCX) and its inverse (0312 of NXC)."""
    shape = helpers.shape_of(data_format, 3, channels, (5, 4))
    case = helpers.case(shape, dtype, "f32", data_format)
    op = onedsl.BatchNormTrainingBackward(EPSILON, data_format)
    for order in itertools.permutations(range(4)):
        src, diff_dst = (in_order(a, order) for a in case.problem[:2])
        problem = case.problem._replace(src=src, diff_dst=diff_dst)
        guarded = helpers.outputs_like(problem)
        got = op(*problem, backend=backend)
        assert got.diff_src.strides == src.strides
        op(*problem, out=guarded.out, backend=backend)
        guarded.check_walls()
        for result in (got, guarded.out):
            testing.assert_close(result, case.expected)


@helpers.backends
def test_out_may_have_any_stride_in_axes_of_one_element(backend):
    problem, expected = helpers.case((6, 1, 5), "f32", "f32", "NXC")
    memory = np.empty((6, 5), np.float32)
    diff_src = np.lib.stride_tricks.as_strided(memory, (6, 1, 5), (20, 12345, 4))
    out = (diff_src, np.empty(5, "f4"), np.empty(5, "f4"))
    got = onedsl.BatchNormTrainingBackward(EPSILON)(*problem, out=out, backend=backend)
    assert got.diff_src is diff_src
    testing.assert_close(got, expected)


@pytest.mark.parametrize("step", [2**62, -(2**62), -(2**63)])
def test_results_are_in_memory_order_whatever_the_strides(step):
    """Regression: the absolute value of the lowest stride was negative."""
    src = np.lib.stride_tricks.as_strided(np.zeros((4, 6), "f4"), (1, 4, 3), (step, 24, 8))
    zeros = np.zeros(3, "f4")
    result = onedsl.BatchNormForwardTraining(EPSILON)(src, zeros, zeros)
    assert result.dst.strides == (48, 12, 4)


@pytest.mark.parametrize("step", [2**61, 2**62 + 1, -(2**62)])
def test_a_spec_of_axes_of_one_element_may_have_any_stride(step):
    """Regression: strides that overflow in bytes raised an error of pybind11."""
    shape = (1, 4, 3)
    spec = onedsl.TensorSpec(shape, strides=(step, 3, 1))
    problem = testing.random_problem(shape)
    got = onedsl.BatchNormTrainingBackward(EPSILON).graph(spec).repaired().compile()
    expected = testing.batch_norm_backward(*problem, epsilon=EPSILON)
    testing.assert_close(onedsl.BatchNormGradients(**got(**problem._asdict())), expected)


BASE = (4, 6, 5, 8)


def sliced(a):
    wide = np.zeros((a.shape[0] * 2, *a.shape[1:-1], a.shape[-1] + 3), a.dtype)
    wide[::2, ..., 1:-2] = a
    return wide[::2, ..., 1:-2]


STRIDED = {
    "slices": sliced,
    "negative": lambda a: np.ascontiguousarray(a[::-1, :, ::-1])[::-1, :, ::-1],
    "unaligned": unaligned,
    "record_field": helpers.in_record,
    "broadcast": lambda a: np.broadcast_to(a[:1], a.shape),
    "other_order": lambda a: in_order(a, (0, 2, 3, 1)),  # of diff_dst than of src
}
# The copy of a broadcast src has another order of axes.
WHICH = {"other_order": ["diff_dst"], "broadcast": ["src diff_dst"]}
CHANGED = [(k, w) for k in STRIDED for w in WHICH.get(k, ["src", "diff_dst", "src diff_dst"])]


@usable()
@formats
@pytest.mark.parametrize(("kind", "which"), CHANGED)
def test_strided_tensors(dtype, data_format, kind, which, backend):
    """No kernel reads these layouts. The log reports the copies."""
    problem = helpers.case(BASE, dtype, "f32", data_format).problem
    changed = {name: STRIDED[kind](getattr(problem, name)) for name in which.split()}
    inputs = problem._replace(**changed)
    before = [array.tobytes() for array in inputs]
    options = {"epsilon": EPSILON, "data_format": data_format}
    expected = testing.batch_norm_backward(*inputs, **options)
    op = onedsl.BatchNormTrainingBackward(**options)
    with helpers.run_records() as records:
        got = op(*inputs, backend=backend)
    testing.assert_close(got, expected)
    assert helpers.copied(records) == [*changed]
    # The bits of a dense copy, and its strides.
    order = np.copy(inputs.src, order="K")
    dense = [np.empty_like(order) for _ in range(2)]
    for array, value in zip(dense, inputs, strict=False):
        array[...] = value
    same = op(*dense, *inputs[2:], backend=backend)
    assert [a.tobytes() for a in got] == [a.tobytes() for a in same]
    assert got.diff_src.strides == order.strides
    guarded = helpers.Guarded(got.diff_src, inputs.mean, inputs.mean)
    op(*inputs, out=guarded.out, backend=backend)
    guarded.check_walls()
    testing.assert_close(guarded.out, expected)
    memory = np.full(np.multiply((2, 3, 2, 2), BASE[::-1]), 7, got.diff_src.dtype)
    out = memory[::-2, 1::3, ::2, 1::2].T
    with helpers.run_records() as records:
        op(*inputs, out=(out, *guarded.out[1:]), backend=backend)
    assert helpers.copied(records) == [*changed, "diff_src"]
    assert out.tobytes() == got.diff_src.tobytes()
    out[...] = 7
    assert (memory == 7).all()
    assert before == [array.tobytes() for array in inputs]


# In every data format: a gap between positions, between channels, and another order of them.
PITCHED = {
    "channels": lambda a: np.concatenate([a[:, :1], a, a[:, 1:]], 1)[:, 1 : 1 + a.shape[1]],
    "batch": lambda a: np.repeat(a, 2, 0)[::2],
    "reversed": lambda a: np.ascontiguousarray(a[::-1])[::-1],
    "channels reversed": lambda a: np.ascontiguousarray(a[:, ::-1])[:, ::-1],
    "channels first": lambda a: np.ascontiguousarray(a.swapaxes(0, 1)).swapaxes(0, 1),
}
# Rows that are joined, rows that are not, short and long planes, and planes in segments. The last
# dimension is short enough for rows if it is below 16.
PITCHED_SHAPES = [(4099, 64), (263, 96), (40, 2053), (301, 64, 3), (37, 70, 49), (3, 5, 40_009)]


@pytest.mark.parametrize("kind", PITCHED)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("shape", PITCHED_SHAPES, ids=str)
def test_tensors_with_a_pitch_are_used_in_place(shape, dtype, kind):
    """The kernels read and write them, with the bits of dense tensors."""
    src, diff_dst, *statistics = helpers.case(shape, dtype, "f32", "NCX").problem
    options = {"epsilon": EPSILON, "data_format": "NCX"}
    backward = onedsl.BatchNormTrainingBackward(**options)
    forward = onedsl.BatchNormActForwardTraining(**options, activation="silu")
    act = onedsl.BatchNormActTrainingBackward(**options, activation="silu")

    def results(src, diff_dst, other, outs=()):
        stats, out = statistics[:2], itertools.chain(outs, itertools.repeat(None))
        yield backward(src, diff_dst, *statistics, out=next(out))
        yield forward(src, *stats, residual=other, out=next(out))
        yield act(src, diff_dst, *stats, residual=other, out=next(out))

    def pitched(arrays):
        return tuple(a.copy() if a.ndim == 1 else PITCHED[kind](a) for a in arrays)

    tensors = src, diff_dst, diff_dst[::-1].copy()
    expected = list(results(*tensors))
    out = [*map(pitched, expected)]
    inputs = pitched(tensors)
    if kind == "channels first":  # the order of src decides the bits
        inputs = src, *inputs[1:]
    with helpers.run_records() as records:
        for calls in results(*inputs), results(*tensors, out):
            for got, dense in zip(calls, expected, strict=True):
                assert [a.tobytes() for a in got] == [a.tobytes() for a in dense]
    # In place: a kernel that wrote twice would read its own results.
    diff_src, diff_gamma, diff_beta = out[0]
    diff_src[...] = diff_dst
    backward(inputs[0], diff_src, *statistics, out=(diff_src, diff_gamma, diff_beta))
    assert diff_src.tobytes() == expected[0].diff_src.tobytes()
    is_readable = kind in ("channels", "batch", "reversed") or shape[2:] > (16,)
    assert bool(helpers.copied(records)) == (not is_readable)


def test_non_temporal_stores_are_aligned():
    """An unaligned one crashes, so this runs in a child process."""
    child = helpers.run_script("alignment_of_outputs.py")
    assert child.stdout.endswith("\ndone\n")


def test_ndarray_subclass_and_dtype_with_metadata():
    class Mine(np.ndarray):
        pass

    problem, expected = helpers.case(BASE, "f32", "f32", "NXC")
    op = onedsl.BatchNormTrainingBackward(EPSILON)
    testing.assert_close(op(*(a.view(Mine) for a in problem)), expected)
    tagged = np.dtype(np.float32, metadata={"unit": "volt"})
    got = op(*(a.view(tagged) for a in problem))
    testing.assert_close(got, expected)
    assert type(got.diff_src) is np.ndarray


def test_results_own_their_memory():
    """A second call does not write to the results of the first one."""
    problem, expected = helpers.case(BASE, "f32", "f32", "NXC")
    op = onedsl.BatchNormTrainingBackward(EPSILON)
    first = op(*problem)
    op(problem.src, -problem.diff_dst, *problem[2:])
    testing.assert_close(first, expected)
    assert all(member.base is None and member.flags.owndata for member in first)


@pytest.mark.parametrize("strides", [None, (1, 4, 12), (15, 1, 3), (5, 20, 1)], ids=str)
def test_new_array_of_a_spec(strides):
    spec = onedsl.TensorSpec((4, 3, 5), "bf16", strides)
    array = new_array(spec)
    assert onedsl.TensorSpec.of(array) == spec
    assert array.ctypes.data % 64 == 0
    assert (np.asarray(array, np.float32) == 0).all()


def test_an_aligned_array_like_a_slice_is_dense():
    """Regression: it had the slice's strides, and elements beyond its memory."""
    array = aligned_like(np.zeros((40, 64), np.float32)[:, ::2])
    assert array.strides == (128, 4)
    assert array.ctypes.data % 64 == 0


@pytest.mark.parametrize(("shape", "strides"), [((1000,), (4,)), ((3,), (-4,)), ((3,), ())])
def test_arrays_beyond_their_memory_are_rejected(shape, strides):
    with pytest.raises(ValueError, match="must"):
        _core.at_cache_line(np.zeros(500, np.uint8), "f32", shape, strides)


@usable()
def test_no_temporary_of_tensor_size(dtype, backend):
    """A call with out= raises peak memory by much less than the size of a tensor.

    Every page of the arguments is touched before, and a small call pays for one-time buffers.
    oneDNN's own NCX kernel for 16-bit types converts three planes a thread to f32.
    """
    planes = 4 if backend == "onednn" and dtype != "f32" else 0
    environment = {"MALLOC_MMAP_THRESHOLD_": "131072"}  # malloc keeps no freed tensor
    helpers.run_script("memory_peak.py", dtype, backend, str(planes), environment=environment)
