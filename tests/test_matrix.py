"""Operators x types x formats x ranks x ports x backends, against the float64 references.

test_isa.py runs this file again with lower instruction sets.
"""

import itertools

import helpers
import numpy as np
import pytest
from fuzz import judge
from fuzz.case import Case
from fuzz.targets import TARGETS
from helpers import EPSILON, backends, formats

import onedsl
from onedsl import _core, testing

pytestmark = pytest.mark.filterwarnings("ignore::onedsl.GammaIgnoredWarning")

# Batch and spatial sizes: odd, about 32 elements per channel.
SIZES = [(33,), (2, 33), (2, 7, 5), (2, 3, 2, 5), (2, 3, 1, 2, 5), (2, 2, 2, 1, 3, 2)]
SIZES += [(2, 2, 1, 2, 3, 1, 2), (1, 33)]
EMPTY = [(0,), (4,), (0, 5), (2, 0), (2, 0, 4, 5), (0, 0, 0)]
# For each shape another remainder of channels.
SHAPES = list(zip(SIZES, (17, 8, 16, 3, 64, 5, 24, 7), strict=True))
SHAPES += list(zip(EMPTY, (3, 0, 3, 3, 3, 0), strict=True))

OMITTED = [(), ("gamma", "beta"), ("residual",), ("dst",), ("residual", "dst")]

ROWS = [
    pytest.param(target, dtype, stats, id=f"{target.cls.__name__}-{dtype}-{stats}")
    for target in TARGETS
    for dtype, row in target.schema.types.items()
    for stats in row
]


def inputs_of(target, dtype, stats, data_format, shape):
    """Return arrays by oneDNN's names.

    Statistics of empty tensors are NaN, which must not show. The running ones do, unchanged.
    """
    problem = testing.random_problem(shape, dtype, stats, data_format=data_format)
    values = helpers.values_of(problem)
    shown = ("mean", "variance") if "momentum" in target.attributes else ()
    for name, array in values.items():
        if array.ndim == 1:
            kept = onedsl.DataFormat(data_format).broadcast_shape(shape)
            values[name] = array.reshape(kept) if target.broadcast else array
            if not problem.src.size:
                values[name] = np.full_like(values[name], 3 if name in shown else np.nan)
    return values


def calls_of(target, dtype, stats, data_format, shape, backend):
    """Yield calls with all combinations of optional inputs, requested outputs and attributes."""
    schema = target.schema
    values = inputs_of(target, dtype, stats, data_format, shape)
    names = [name for name, *_ in _core.signatures()[schema.operation][0]]
    optional = {port.name for port in schema.inputs if port.optional}
    alternatives = {*schema.alternatives}
    omitted = []
    for omit in OMITTED:
        without = optional & {*omit}
        if not without & alternatives:  # of which a call passes one
            without |= alternatives - {"dst"}
        omitted += [] if without in omitted else [without]
    option, *requests = target.option or ("", None)
    attributes: dict[str, object] = {"epsilon": EPSILON, **target.required}
    attributes |= {} if target.broadcast else {"data_format": data_format}
    if "momentum" in target.attributes:  # running statistics differ from those of the batch
        attributes |= {"momentum": 0.9}
        values |= {"mean": values["mean"] / 2, "variance": values["variance"] * 2}
    clips = [{"clip": None}, {"clip": 0.5}] if "clip" in target.attributes else [{}]
    for without, request, clip in itertools.product(omitted, requests, clips):
        if "dst" in without and backend == "onednn":
            continue  # which requires it
        if request is True and alternatives <= without:
            continue  # which requires one
        inputs = [None if name in without else values[name] for name in names]
        options = {"backend": backend} | ({option: request} if option else {})
        yield Case(target, attributes | clip, inputs, options, "direct")


def expect_unsupported(dtype, call):
    """Check that a call raises UnsupportedError, which names the missing instruction set."""
    needed = helpers.missing_isa(dtype)
    assert needed is not None
    with pytest.raises(onedsl.UnsupportedError) as caught:
        call()
    message = str(caught.value)
    isa = {"AVX512": "avx512_core", "AVX512_FP16": "avx512_core_fp16"}[needed]
    assert f"oneDNN has no {dtype} kernel for CPUs without {isa} (" in message
    assert 'Use backend="native"' in message
    assert caught.value.status == "unimplemented"


def check_call(case, dtype):
    """Check a call that writes to guarded buffers."""
    schema = case.target.schema
    ports = zip(schema.inputs, case.inputs, strict=True)
    likes = {port.kind: array for port, array in ports if array is not None}
    requested = [port for port in schema.outputs if port.name in case.requested]
    guarded = helpers.Guarded(*(likes[port.kind] for port in requested))
    by_name = dict(zip(case.requested, guarded.buffers, strict=True))
    case.out = schema.result(*(by_name.get(port.name) for port in schema.outputs))
    if case.backend == "onednn" and case.target.broadcast:
        with pytest.raises(onedsl.UnsupportedError, match="no op for frozen statistics"):
            judge.run(case)
        guarded.check_untouched()
    elif case.inputs[0].size and not helpers.runs(case.backend, dtype):
        expect_unsupported(dtype, lambda: judge.run(case))
        guarded.check_untouched()
    else:
        assert judge.run(case) is case.out
        guarded.check_walls()
        judge.check_result(case, case.out, judge.reference_of(case))


@backends
@pytest.mark.parametrize(("target", "dtype", "stats"), ROWS)
@formats
def test_every_call(target, dtype, stats, data_format, backend):
    for sizes, channels in SHAPES:
        shape = helpers.shape_of(data_format, sizes[0], channels, sizes[1:])
        for case in calls_of(target, dtype, stats, data_format, shape, backend):
            check_call(case, dtype)


@pytest.mark.parametrize(("target", "dtype", "stats"), ROWS)
@formats
def test_auto_is_native(target, dtype, stats, data_format):
    """The other tests run "native" for both."""
    shape = helpers.shape_of(data_format, 4, 20, (6, 5))
    schema = target.schema
    for case in calls_of(target, dtype, stats, data_format, shape, "native"):
        native = target.cls(**case.attributes)(*case.inputs, **case.options)
        assert type(native) is schema.result
        for port, array in zip(schema.outputs, native, strict=True):
            assert (array is None) == (port.name not in case.requested)
            if array is not None:
                of_port = dtype if port.kind == "tensor" else stats
                assert array.dtype == helpers.NUMPY[of_port]
                assert port.kind == "statistic" or array.strides == case.inputs[0].strides
        for options in ({"backend": "auto"}, {}):
            results = target.cls(**case.attributes)(*case.inputs, **case.options | options)
            for got, array in zip(results, native, strict=True):
                assert (got is None and array is None) or got.tobytes() == array.tobytes()


# Large enough for non-temporal stores. The offset tests their unaligned heads and tails.
@pytest.mark.parametrize(
    ("dtype", "channels"), [("f32", 17), ("f32", 64), ("bf16", 17), ("f16", 64)]
)
@formats
def test_large(dtype, data_format, channels):
    width = (3_000_000 if dtype == "f32" else 6_000_000) // channels // 600
    shape = helpers.shape_of(data_format, 3, channels, (200, width))
    small = testing.random_problem((100_003, 1), dtype, "f32", data_format="NXC")
    src, diff_dst = (np.resize(a, shape) for a in (small.src, small.diff_dst))
    mean, variance, gamma = np.random.default_rng(0).uniform(0.5, 2, (3, channels)).astype("f4")
    problem = testing.Problem(src, diff_dst, mean, variance, gamma)
    expected = testing.batch_norm_backward(*problem, epsilon=EPSILON, data_format=data_format)
    guarded = helpers.outputs_like(problem, offset=3)
    op = onedsl.BatchNormTrainingBackward(EPSILON, data_format)
    op(*problem, out=guarded.out)
    guarded.check_walls()
    testing.assert_close(guarded.out, expected)
    # Non-temporal stores must not hit memory that is read later.
    in_place = problem.diff_dst.copy()
    sums = map(np.empty_like, (mean, mean))
    got = op(*problem._replace(diff_dst=in_place), out=(in_place, *sums))
    assert [a.tobytes() for a in got] == [a.tobytes() for a in guarded.out]
