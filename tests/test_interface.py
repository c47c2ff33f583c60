"""Public names, attributes, specs, errors and docstrings: all of the interface that is no call."""

import ast
import copy
import doctest
import fractions
import functools
import importlib
import inspect
import pickle
import re
from pathlib import Path

import helpers
import numpy as np
import pytest
from fuzz.targets import TARGETS
from helpers import EPSILON

import onedsl
from onedsl import _core, testing
from onedsl.graph import compiled_graph
from onedsl.operators import capabilities as _capabilities
from onedsl.runtime import onednn

Op = onedsl.BatchNormTrainingBackward


RELU = onedsl.BatchNormActForwardTraining(1, 0.9, "NCX", clip=6, activation="relu")
OPERATORS = [
    *(target.cls(1e-5, **target.required) for target in TARGETS),
    Op(0.1, "NCX"),
    onedsl.BatchNormalizationGrad(1e-30),
    onedsl.BatchNormForwardTraining(np.float32(1e-3)),
    Op(np.int8(1)),
    Op(fractions.Fraction(1, 4)),
    onedsl.BatchNormForwardTraining(1e-5, 0.25),
    RELU,
    onedsl.BatchNormActTrainingBackward(1e-5, clip=0.5, activation="relu"),
    onedsl.BatchNormActForwardTraining(1e-5, activation="gelu"),
    onedsl.BatchNormActForwardTraining(1e-5, activation="leaky_relu", negative_slope=0.2),
    onedsl.BatchNormActTrainingBackward(1e-5, "NCX", activation="relu", clip=6.0),
]


SPECS = [onedsl.TensorSpec((2, 3), "bf16", strides) for strides in (None, (1, 2))]


@pytest.mark.parametrize(
    "value",
    [*OPERATORS, *SPECS, onedsl.capabilities()],
    ids=lambda value: repr(value)[:60],
)
def test_values_are_read_only(value):
    for name in ("epsilon", "data_format", "shape", "dtype", "num_threads", "backend", "anything"):
        # Unknown attributes of a frozen dataclass with slots are a TypeError.
        with pytest.raises((AttributeError, TypeError)):
            setattr(value, name, 1)
        with pytest.raises((AttributeError, TypeError)):
            delattr(value, name)


@pytest.mark.parametrize("value", [*OPERATORS, *SPECS], ids=repr)
def test_every_operator_and_spec_has_copies(value):
    assert eval(repr(value), {"onedsl": onedsl}) == value
    copies = [copy.copy(value), copy.deepcopy([value])[0]]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        copies.append(pickle.loads(pickle.dumps(value, protocol)))
    assert {*copies} == {value}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.cls.__name__)
def test_parameters_of_operators(target):
    """Each is an attribute, and the tests of calls have values of it."""
    of_activation = "activation", "clip", "negative_slope"
    parameters = {
        "BatchNormTrainingBackward": ("epsilon", "data_format"),
        "BatchNormTrainingBackprop": ("epsilon", "data_format"),
        "BatchNormalizationGrad": ("epsilon",),
        "BatchNormForwardTraining": ("epsilon", "momentum", "data_format"),
        "BatchNormActForwardTraining": ("epsilon", "momentum", "data_format", *of_activation),
        "BatchNormActTrainingBackward": ("epsilon", "data_format", *of_activation),
    }[target.cls.__name__]
    assert tuple(inspect.signature(target.cls).parameters) == parameters
    tested = {"epsilon", *target.attributes} | ({*()} if target.broadcast else {"data_format"})
    assert tested == {*parameters}


def test_attributes_of_operators():
    op = Op(epsilon=1e-3, data_format="NCX")
    assert (op.epsilon, op.data_format) == (1e-3, "NCX")
    assert op.data_format is onedsl.DataFormat.NCX
    assert (RELU.epsilon, RELU.momentum, RELU.clip) == (1.0, 0.9, 6.0)
    assert repr(RELU) == (
        "onedsl.BatchNormActForwardTraining(epsilon=1.0, momentum=0.9, data_format='NCX', "
        "activation='relu', clip=6.0, negative_slope=None)"
    )
    for momentum in (None, 0, 1):
        assert onedsl.BatchNormForwardTraining(1e-5, momentum).momentum == momentum
    for target in TARGETS:
        op = target.cls(1e-3, **target.required)
        assert getattr(op, "data_format", None) is (
            None if target.broadcast else onedsl.DataFormat.NXC
        )


def test_equality_and_hash_of_operators():
    assert Op(1e-3) == Op(1e-3, "NXC") == Op(np.float64(1e-3))
    assert Op(1e-3, onedsl.DataFormat.NCX) == Op(1e-3, "NCX") != Op(1e-3)
    assert hash(Op(1e-3)) == hash(Op(1e-3, "NXC"))
    assert Op(1e-3) not in (Op(1e-4), 1e-3, type("Other", (Op,), {"__slots__": ()})(1e-3))
    assert len({*OPERATORS, Op(1e-5, "NXC"), Op(0.1, "NCX")}) == len(OPERATORS)


def test_a_data_format_equals_its_string():
    assert [*onedsl.DataFormat] == ["NXC", "NCX"]
    for member in onedsl.DataFormat:
        assert member == member.name == str(member) == f"{member}"
        assert hash(member) == hash(member.name)
        assert pickle.loads(pickle.dumps(member)) is member
    assert onedsl.DataFormat.NCX.channels_of((5,)) == ()
    with pytest.raises(ValueError, match="rank must be an integer of at least 2, got 1"):
        onedsl.DataFormat.NXC.summed_axes(1)


# ---- TensorSpec ----


@helpers.dtypes
def test_spellings_of_dtypes(dtype):
    numpy, found = helpers.NUMPY[dtype], onedsl.capabilities()
    for given in (dtype, numpy.name, numpy, numpy.type):
        assert onedsl.TensorSpec((2, 3), given).dtype == dtype
        assert found.runs_in_onednn(given, np.float32) == found.runs_in_onednn(dtype)
        if dtype != "f16":
            graph = Op(EPSILON).graph(onedsl.TensorSpec((4, 3), dtype), stats_dtype=given)
            assert graph.inputs["mean"].dtype == dtype


@pytest.mark.parametrize(
    "dtype",
    ["f64", "float64", "half", "double", "", float, np.float64, int, None, ">f4",
     np.dtype(">f4"), pytest.param(object(), id="object"), 3, [("a", "f4"), ("a", "f4")],
     [("a", "f4")]],
    ids=repr,
)  # fmt: skip
def test_invalid_dtypes(dtype):
    message = re.escape(f"dtype must be f32, bf16 or f16, got {dtype!r}")
    with pytest.raises(TypeError, match=f"^{message}$"):
        onedsl.TensorSpec((2, 3), dtype)
    with pytest.raises(TypeError, match=r"^dtype must be"):
        onedsl.capabilities().runs_in_onednn(dtype)
    with pytest.raises(TypeError, match=r"^stats_dtype must be"):
        onedsl.capabilities().runs_in_onednn("f32", dtype)


def test_specs_of_dense_memory():
    spec = onedsl.TensorSpec([4, 5, 6])
    assert (spec.shape, spec.dtype, spec.strides) == ((4, 5, 6), "f32", (30, 6, 1))
    assert len({*SPECS, onedsl.TensorSpec([2, 3], "bfloat16", [1, 2])}) == len(SPECS)
    assert SPECS[0] != ((2, 3), "bf16", (3, 1))
    for shape, strides in (
        ((4, 5, 6), (1, 4, 20)), ((4, 5, 6), (30, 1, 5)), ((4, 1, 6), (6, 99, 1)),
        ((0, 5), (7, -3)), ((), ()),
    ):  # fmt: skip
        assert onedsl.TensorSpec(shape, "f32", strides).strides == strides


def test_invalid_shapes_and_strides(says):
    for shape, strides in [
        *(((4, 5), row) for row in ((6, 1), (5, 2), (1, 1), (0, 1), (5, -1), (-5, 1), (20, 4))),
        *((shape, None) for shape in ((2, -3), (2.0, 3), ("2", "3"), 5, None)),
        *(((2, 3), strides) for strides in ((1,), 3, (3.0, 1))),
        *((shape, None) for shape in ((0, 2**63), (2, 2, 0, 2**62))),
        *(((1, 3), strides) for strides in ((2**63, 1), (-(2**63), 1))),
    ]:
        with pytest.raises((TypeError, ValueError)) as caught:
            onedsl.TensorSpec(shape, "f32", strides)
        says(caught.value)


@pytest.mark.parametrize("order", ["C", "F"])
@helpers.dtypes
def test_specs_of_arrays(order, dtype):
    spec = onedsl.TensorSpec.of(np.zeros((2, 3, 4), helpers.NUMPY[dtype], order))
    strides = (12, 4, 1) if order == "C" else (1, 2, 6)
    assert spec == onedsl.TensorSpec((2, 3, 4), dtype, strides)
    assert (spec == onedsl.TensorSpec((2, 3, 4), dtype)) == (order == "C")


def test_specs_of_invalid_arrays(says):
    array = np.zeros((4, 6), "f4")
    packed = np.zeros((5, 1), [("a", "f4"), ("b", "i2")])["a"]  # items are 6 bytes apart
    invalid = array[:, ::2], array[::-1], packed, np.zeros((4, 6)), [1.0, 2.0], None, 3, "f32"
    for value in invalid:
        with pytest.raises((TypeError, ValueError)) as caught:
            onedsl.TensorSpec.of(value)
        says(caught.value)


# ---- Errors and warnings ----


@pytest.mark.parametrize(
    ("cls", "bases"),
    [
        (onedsl.OneDNNError, (RuntimeError,)),
        (onedsl.UnsupportedError, (onedsl.OneDNNError, NotImplementedError)),
        (onedsl.GammaIgnoredWarning, (UserWarning,)),
    ],
)
def test_errors_are_exceptions_of_the_package(cls, bases):
    assert all(issubclass(cls, base) for base in bases)
    assert cls.__module__ == "onedsl"
    if issubclass(cls, onedsl.OneDNNError):
        error = pickle.loads(pickle.dumps(cls("message", "unimplemented")))
        assert (type(error), str(error), error.status) == (cls, "message", "unimplemented")
        assert cls("message").status == "runtime_error"


@helpers.backends
def test_a_warning_of_an_ignored_gamma(backend):
    """It has the line of the caller and the remedy. As an error, it writes nothing."""
    call = functools.partial(Op(EPSILON), outputs="diff_src", backend=backend)
    problem = helpers.case((9, 3), "f32", "f32", "NXC").problem
    with pytest.warns(onedsl.GammaIgnoredWarning) as caught:
        line = inspect.currentframe().f_lineno + 1
        got = call(*problem)
    (warning,) = caught
    assert (warning.filename, warning.lineno) == (__file__, line)
    assert "gamma is ignored" in str(warning.message)
    assert 'Pass outputs="all"' in str(warning.message)
    without = call(*problem[:4], None)  # where any warning would be an error
    assert np.array_equal(got.diff_src, without.diff_src)
    out = helpers.Guarded(problem.src)
    with pytest.raises(onedsl.GammaIgnoredWarning):
        call(*problem, out=(*out.buffers, None, None))
    out.check_untouched()
    with pytest.raises(ValueError, match=r"gamma must have mean's shape \(3,\)"):
        call(*problem[:4], np.ones(4, "f4"))


# ---- Capabilities ----


def test_capabilities():
    got = onedsl.capabilities()
    assert isinstance(got, onedsl.Capabilities)
    assert got == onedsl.capabilities()
    assert got.onedsl_version == onedsl.__version__
    assert tuple(map(int, got.onednn_version.split("."))) == onednn.version()
    assert got.native_isa in ("avx512", "avx2", "baseline")
    assert got.num_threads == _core.max_threads() >= 1
    assert len(got.support) == len({s[:5] for s in got.support}) == 4 * 2 * 5 * 2
    for row in got.support:
        assert bool(row.message) != row.onednn
    plain = [s for s in got.support if s.onednn and s.dtype == "f32" and s.rank == 4 and s.gamma]
    assert {s.data_format for s in plain} == {"NXC", "NCX"}
    for dtype, stats in helpers.TYPES:
        assert got.runs_in_onednn(dtype, stats) == helpers.runs("onednn", dtype)
    texts = got.onedsl_version, got.onednn_version, got.onednn_isa, got.native_isa
    for text in (*texts, "f32/f32", "bf16/f32", "bf16/bf16", "f16/f32"):
        assert text in str(got)


@pytest.mark.parametrize(
    ("function", "status", "is_kept"),
    [
        # Regression: an error with "CPU engine" in its message counted as a missing engine.
        ("compile_graph", "unimplemented", True),
        ("make_engine", "unimplemented", False),
        # Regression: oneDNN's kernels then counted as unsupported until the process ended.
        ("compile_graph", "out_of_memory", False),
    ],
)
def test_capabilities_after_an_error_of_onednn(function, status, is_kept, monkeypatch):
    """Unsupported types are kept; a missing engine or a lack of memory is an error."""

    def fail(*_):
        raise onedsl.OneDNNError("no such thing on this CPU engine", status)

    def clear():
        for cache in _capabilities._support, compiled_graph._compile:
            cache.cache_clear()

    clear()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(onednn, "compile_graph", fail)
            patch.setattr(onednn, function, fail)
            if is_kept:
                assert not any(row.onednn for row in onedsl.capabilities().support)
            else:
                with pytest.raises(onedsl.OneDNNError, match="no such thing"):
                    onedsl.capabilities()
        assert is_kept or any(row.onednn for row in onedsl.capabilities().support)
    finally:
        clear()


# ---- The package ----

PACKAGE = Path(onedsl.__file__).parent
INTEGRATIONS = {
    "equinox": "BatchNorm",
    "flax": "nnx",
    "jax": "batch_norm_backward",
    "torch": "batch_norm_backward",
}
WITH_EXAMPLES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if not {*INTEGRATIONS} & {*path.relative_to(PACKAGE).parts} and ">>> " in path.read_text()
]


def test_public_names():
    fixed = {
        "BatchNormTrainingBackward", "BatchNormGradients", "TensorSpec", "DataFormat",
        "capabilities", "testing", "OneDNNError", "UnsupportedError", "GammaIgnoredWarning",
    }  # fmt: skip
    assert fixed <= set(onedsl.__all__)
    for name in onedsl.__all__:
        assert name == "__version__" or inspect.getdoc(getattr(onedsl, name))
    for module in onedsl, onedsl.graph, testing:
        assert {*dir(module)} - {*INTEGRATIONS} == {*module.__all__}
        assert len(set(module.__all__)) == len(module.__all__)


def test_error_messages_name_public_classes():
    """Regression: ``ChannelOperator.__init__() missing ... 'epsilon'``."""
    for target in TARGETS:
        cls = target.cls
        for method, call in (("__init__", cls), ("__call__", cls(1e-5, **target.required))):
            with pytest.raises(TypeError, match=rf"^{cls.__name__}\.{method}\(\) missing"):
                call()


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_in_docstrings(name):
    source = importlib.import_module(name)
    globs = {"onedsl": onedsl, "np": np}
    result = doctest.testmod(source, extraglobs=globs, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


def test_attributes_of_modules_that_were_not_imported():
    """The errors contain the missing imports, which work or need the framework."""
    child = helpers.run_child(f"""
import onedsl

for name in ({[*INTEGRATIONS]}):
    try:
        getattr(onedsl, name)
    except AttributeError as error:
        print(error)
for name, member in {INTEGRATIONS}.items():
    try:
        exec(f"from onedsl import {{name}}; {{name}}.{{member}}")
    except ImportError as error:
        assert str(error).startswith("onedsl"), error
""")
    for name, line in zip(INTEGRATIONS, child.stdout.splitlines(), strict=True):
        assert f"has no attribute '{name}'; import onedsl.{name} first" in line
    with pytest.raises(AttributeError, match=r"'onedsl' has no attribute 'nonsense'$"):
        _ = onedsl.nonsense


@pytest.mark.parametrize("extension", ["_core", "_onednn"])
def test_number_of_parameters_in_the_stubs(extension):
    """Stubtest cannot check it, since pybind11 has its signatures in docstrings only."""
    module = importlib.import_module(f"onedsl.{extension}")
    nested = re.compile(r"[\[(][^\[\]()]*[\])]")
    tree = ast.parse((PACKAGE / f"{extension}.pyi").read_text())
    scopes = [(module, tree)]
    scopes += [(getattr(module, c.name), c) for c in tree.body if isinstance(c, ast.ClassDef)]
    functions = [
        (getattr(owner, node.name), node.args)
        for owner, scope in scopes
        for node in scope.body
        if isinstance(node, ast.FunctionDef) and not node.decorator_list
    ]
    assert functions
    for function, args in functions:
        signature = function.__doc__.splitlines()[0]
        inside = signature[signature.index("(") + 1 : signature.rindex(")")]
        while nested.search(inside):
            inside = nested.sub("", inside)
        names = [part for part in inside.split(", ") if part not in ("", "*", "/")]
        assert len(names) == len([*args.posonlyargs, *args.args, *args.kwonlyargs]), signature
