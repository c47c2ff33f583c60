"""Public names, attributes, specs, errors and docstrings: all of the interface that is no call."""

import ast
import copy
import doctest
import fractions
import functools
import importlib
import inspect
import logging
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


ACT = "activation", "clip", "negative_slope"
PARAMETERS = {
    "BatchNormTrainingBackward": ("epsilon", "data_format"),
    "BatchNormTrainingBackprop": ("epsilon", "data_format"),
    "BatchNormalizationGrad": ("epsilon",),
    "BatchNormForwardTraining": ("epsilon", "momentum", "data_format"),
    "BatchNormActForwardTraining": ("epsilon", "momentum", "data_format", *ACT),
    "BatchNormActTrainingBackward": ("epsilon", "data_format", *ACT),
}


class TestOperator:
    @pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.cls.__name__)
    def test_parameters(self, target):
        """Each is an attribute, and the tests of calls have values of it."""
        parameters = PARAMETERS[target.cls.__name__]
        assert tuple(inspect.signature(target.cls).parameters) == parameters
        tested = {"epsilon", *target.attributes} | ({*()} if target.broadcast else {"data_format"})
        assert tested == {*parameters}

    def test_attributes(self):
        op = Op(epsilon=1e-3, data_format="NCX")
        assert op.epsilon == 1e-3
        assert op.data_format is onedsl.DataFormat.NCX
        assert op.data_format == "NCX"
        assert (RELU.epsilon, RELU.momentum, RELU.clip) == (1.0, 0.9, 6.0)
        for momentum in (None, 0, 1):
            assert onedsl.BatchNormForwardTraining(1e-5, momentum).momentum == momentum
        assert not hasattr(onedsl.BatchNormalizationGrad(1e-5), "data_format")
        for target in TARGETS:
            if not target.broadcast:
                op = target.cls(1e-3, **target.required)
                assert op.data_format is onedsl.DataFormat.NXC

    def test_equality_and_hash(self):
        assert Op(1e-3) == Op(1e-3, "NXC") == Op(np.float64(1e-3))
        assert Op(1e-3, onedsl.DataFormat.NCX) == Op(1e-3, "NCX") != Op(1e-3)
        assert hash(Op(1e-3)) == hash(Op(1e-3, "NXC"))
        assert Op(1e-3) != Op(1e-4)
        assert Op(1e-3) != 1e-3
        assert Op(1e-3) != type("Other", (Op,), {"__slots__": ()})(1e-3)
        assert len({*OPERATORS, Op(1e-5, "NXC"), Op(0.1, "NCX")}) == len(OPERATORS)

    def test_repr(self):
        assert repr(RELU) == (
            "onedsl.BatchNormActForwardTraining(epsilon=1.0, momentum=0.9, data_format='NCX', "
            "activation='relu', clip=6.0, negative_slope=None)"
        )


class TestDataFormat:
    def test_equals_its_string(self):
        for name in ("NXC", "NCX"):
            member = onedsl.DataFormat(name)
            assert member == name
            assert str(member) == f"{member}" == name
            assert hash(member) == hash(name)
            assert pickle.loads(pickle.dumps(member)) is member
        assert onedsl.DataFormat.NXC.channel_axis == -1
        assert onedsl.DataFormat.NCX.channel_axis == 1
        assert len(onedsl.DataFormat) == 2

    @pytest.mark.parametrize("shape", [(5, 3), (5, 3, 4), (2, 3, 4, 5)], ids=str)
    def test_axes_and_shapes(self, shape):
        for name, axis in (("NXC", len(shape) - 1), ("NCX", 1)):
            data_format = onedsl.DataFormat(name)
            others = tuple(i for i in range(len(shape)) if i != axis)
            assert data_format.summed_axes(len(shape)) == others
            beside = tuple(1 if i in others else size for i, size in enumerate(shape))
            assert data_format.broadcast_shape(shape) == beside
            assert data_format.channels_of(shape) == (shape[axis],)
            with pytest.raises(ValueError, match="rank must be an integer of at least 2, got 1"):
                data_format.summed_axes(1)
        assert onedsl.DataFormat.NCX.channels_of((5,)) == ()


class TestTensorSpec:
    @pytest.mark.parametrize(
        ("given", "name"),
        [
            (spelling, name)
            for name, dtype in helpers.NUMPY.items()
            for spelling in (name, dtype.name, dtype, dtype.type)
        ],
        ids=repr,
    )
    def test_dtype_spellings(self, given, name):
        spec = onedsl.TensorSpec((2, 3), given)
        assert spec.dtype == name
        found = onedsl.capabilities()
        assert found.runs_in_onednn(given, np.float32) == found.runs_in_onednn(name)
        if name != "f16":
            graph = Op(EPSILON).graph(onedsl.TensorSpec((4, 3), name), stats_dtype=given)
            assert graph.inputs["mean"].dtype == name

    @pytest.mark.parametrize(
        "dtype",
        ["f64", "float64", "half", "double", "", float, np.float64, int, None, ">f4",
         np.dtype(">f4"), pytest.param(object(), id="object"), 3, [("a", "f4"), ("a", "f4")],
         [("a", "f4")]],
        ids=repr,
    )  # fmt: skip
    def test_invalid_dtype(self, dtype):
        message = re.escape(f"dtype must be f32, bf16 or f16, got {dtype!r}")
        with pytest.raises(TypeError, match=f"^{message}$"):
            onedsl.TensorSpec((2, 3), dtype)
        with pytest.raises(TypeError, match=r"^dtype must be"):
            onedsl.capabilities().runs_in_onednn(dtype)
        with pytest.raises(TypeError, match=r"^stats_dtype must be"):
            onedsl.capabilities().runs_in_onednn("f32", dtype)

    def test_defaults(self):
        spec = onedsl.TensorSpec([4, 5, 6])
        assert (spec.shape, spec.dtype, spec.strides) == ((4, 5, 6), "f32", (30, 6, 1))

    def test_equality(self):
        assert len({*SPECS, onedsl.TensorSpec([2, 3], "bfloat16", [1, 2])}) == len(SPECS)
        assert SPECS[0] != ((2, 3), "bf16", (3, 1))

    @pytest.mark.parametrize(
        ("shape", "strides"),
        [((4, 5, 6), (30, 6, 1)), ((4, 5, 6), (1, 4, 20)), ((4, 5, 6), (30, 1, 5)),
         ((4, 1, 6), (6, 99, 1)), ((0, 5), (7, -3)), ((), ())],
        ids=str,
    )  # fmt: skip
    def test_dense_strides(self, shape, strides):
        assert onedsl.TensorSpec(shape, "f32", strides).strides == strides

    @pytest.mark.parametrize(
        ("shape", "strides"),
        [((4, 5), (6, 1)), ((4, 5), (5, 2)), ((4, 5), (1, 1)), ((4, 5), (0, 1)), ((4, 5), (5, -1)),
         ((4, 5), (-5, 1)), ((4, 5), (20, 4))],
        ids=str,
    )  # fmt: skip
    def test_strides_of_memory_that_is_not_dense(self, shape, strides, says):
        with pytest.raises(ValueError) as caught:
            onedsl.TensorSpec(shape, "f32", strides)
        says(caught.value)

    @pytest.mark.parametrize(
        ("shape", "strides", "error"),
        [
            ((2, -3), None, ValueError),
            ((2, 3), (1,), ValueError),
            ((2.0, 3), None, TypeError),
            (("2", "3"), None, TypeError),
            (5, None, TypeError),
            (None, None, TypeError),
            ((2, 3), 3, TypeError),
            ((2, 3), (3.0, 1), TypeError),
            ((0, 2**63), None, ValueError),
            ((2, 2, 0, 2**62), None, ValueError),
            ((1, 3), (2**63, 1), ValueError),
            ((1, 3), (-(2**63), 1), ValueError),
        ],
        ids=repr,
    )
    def test_invalid_shape_and_strides(self, shape, strides, error, says):
        with pytest.raises(error) as caught:
            onedsl.TensorSpec(shape, "f32", strides)
        says(caught.value)

    @pytest.mark.parametrize("order", ["C", "F"])
    @pytest.mark.parametrize("dtype", helpers.NUMPY)
    def test_of(self, order, dtype):
        array = np.zeros((2, 3, 4), helpers.NUMPY[dtype], order)
        spec = onedsl.TensorSpec.of(array)
        strides = (12, 4, 1) if order == "C" else (1, 2, 6)
        assert spec == onedsl.TensorSpec((2, 3, 4), dtype, strides)
        assert (spec == onedsl.TensorSpec((2, 3, 4), dtype)) == (order == "C")

    def test_of_invalid_arrays(self, says):
        array = np.zeros((4, 6), "f4")
        packed = np.zeros((5, 1), [("a", "f4"), ("b", "i2")])["a"]  # items are 6 bytes apart
        invalid = array[:, ::2], array[::-1], packed, np.zeros((4, 6)), [1.0, 2.0], None, 3, "f32"
        for value in invalid:
            with pytest.raises((TypeError, ValueError)) as caught:
                onedsl.TensorSpec.of(value)
            says(caught.value)


class TestErrors:
    def test_hierarchy(self):
        assert issubclass(onedsl.OneDNNError, RuntimeError)
        assert issubclass(onedsl.UnsupportedError, onedsl.OneDNNError)
        assert issubclass(onedsl.UnsupportedError, NotImplementedError)
        assert issubclass(onedsl.GammaIgnoredWarning, UserWarning)
        for cls in (onedsl.OneDNNError, onedsl.UnsupportedError, onedsl.GammaIgnoredWarning):
            assert cls.__module__ == "onedsl"

    @pytest.mark.parametrize("cls", [onedsl.OneDNNError, onedsl.UnsupportedError])
    def test_status_survives_pickling(self, cls):
        error = pickle.loads(pickle.dumps(cls("message", "unimplemented")))
        assert type(error) is cls
        assert str(error) == "message"
        assert error.status == "unimplemented"
        assert cls("message").status == "runtime_error"


@pytest.fixture(params=helpers.BACKENDS)
def call(request):
    """Ask for diff_src alone, where gamma is ignored."""
    return functools.partial(Op(EPSILON), outputs="diff_src", backend=request.param)


class TestGammaIgnored:
    problem = helpers.case((9, 3), "f32", "f32", "NXC").problem

    def test_warning_has_the_remedy_and_the_line_of_the_caller(self, call):
        with pytest.warns(onedsl.GammaIgnoredWarning) as caught:
            line = inspect.currentframe().f_lineno + 1
            got = call(*self.problem)
        (warning,) = caught
        assert (warning.filename, warning.lineno) == (__file__, line)
        assert "gamma is ignored" in str(warning.message)
        assert 'Pass outputs="all"' in str(warning.message)
        without = call(*self.problem[:4], None)  # where any warning would be an error
        assert np.array_equal(got.diff_src, without.diff_src)

    def test_warning_as_error_writes_nothing(self, call):
        out = helpers.Guarded(self.problem.src)
        with pytest.raises(onedsl.GammaIgnoredWarning):
            call(*self.problem, out=(*out.buffers, None, None))
        out.check_untouched()

    def test_an_ignored_gamma_must_be_valid(self, call):
        with pytest.raises(ValueError, match=r"gamma must have mean's shape \(3,\)"):
            call(*self.problem[:4], np.ones(4, "f4"))


class TestCapabilities:
    def test_versions_and_threads(self):
        got = onedsl.capabilities()
        assert isinstance(got, onedsl.Capabilities)
        assert got.onedsl_version == onedsl.__version__
        assert tuple(map(int, got.onednn_version.split("."))) == onednn.version()
        assert got.native_isa in ("avx512", "avx2", "baseline")
        assert got.num_threads == _core.max_threads() >= 1
        assert onedsl.capabilities() == got

    @helpers.types
    def test_runs_in_onednn(self, dtype, stats):
        got = onedsl.capabilities().runs_in_onednn(dtype, stats)
        assert got == helpers.runs("onednn", dtype)

    def test_every_variant_is_listed_once(self):
        support = onedsl.capabilities().support
        assert len(support) == len({s[:5] for s in support}) == 4 * 2 * 5 * 2
        for row in support:
            assert bool(row.message) != row.onednn
        plain = [s for s in support if s.onednn and s.dtype == "f32" and s.rank == 4 and s.gamma]
        assert {s.data_format for s in plain} == {"NXC", "NCX"}

    def test_unsupported_types_are_not_taken_for_a_missing_engine(self, monkeypatch):
        """Regression: an error with "CPU engine" in its message counted as a missing engine."""

        def fail(*_):
            raise onedsl.OneDNNError("no such thing on this CPU engine", "unimplemented")

        monkeypatch.setattr(onednn, "compile_graph", fail)
        caches = _capabilities._support, compiled_graph._compile
        for cache in caches:
            cache.cache_clear()
        try:
            assert not any(row.onednn for row in onedsl.capabilities().support)
            monkeypatch.setattr(onednn, "make_engine", fail)
            _capabilities._support.cache_clear()
            with pytest.raises(onedsl.OneDNNError, match="no such thing"):
                onedsl.capabilities()
        finally:
            for cache in caches:
                cache.cache_clear()

    def test_a_lack_of_memory_is_not_kept(self, monkeypatch):
        """Regression: oneDNN's kernels then counted as unsupported until the process ended."""

        def fail(*_):
            raise onedsl.OneDNNError("no memory", "out_of_memory")

        _capabilities._support.cache_clear()
        compiled_graph._compile.cache_clear()
        with monkeypatch.context() as patch, pytest.raises(onedsl.OneDNNError, match="no memory"):
            patch.setattr(onednn, "compile_graph", fail)
            onedsl.capabilities()
        assert any(row.onednn for row in onedsl.capabilities().support)

    def test_prints_a_table(self):
        got = onedsl.capabilities()
        text = str(got)
        for part in (got.onedsl_version, got.onednn_version, got.onednn_isa, got.native_isa):
            assert part in text
        assert all(row in text for row in ("f32/f32", "bf16/f32", "bf16/bf16", "f16/f32"))


PACKAGE = Path(onedsl.__file__).parent
INTEGRATIONS = {
    "equinox": "BatchNorm",
    "flax": "nnx",
    "jax": "batch_norm_backward",
    "torch": "batch_norm_backward",
}
SOURCES = [
    path
    for path in PACKAGE.rglob("*.py")
    if not {*INTEGRATIONS} & {*path.relative_to(PACKAGE).parts}
]
WITH_EXAMPLES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in SOURCES
    if ">>> " in path.read_text()
]


class TestPackage:
    def test_public_names(self):
        fixed = {
            "BatchNormTrainingBackward", "BatchNormGradients", "TensorSpec", "DataFormat",
            "capabilities", "testing", "OneDNNError", "UnsupportedError", "GammaIgnoredWarning",
        }  # fmt: skip
        assert fixed <= set(onedsl.__all__)
        assert len(set(onedsl.__all__)) == len(onedsl.__all__)
        for name in onedsl.__all__:
            assert hasattr(onedsl, name)
            assert name == "__version__" or inspect.getdoc(getattr(onedsl, name))

    @pytest.mark.parametrize("module", [onedsl, onedsl.graph, testing])
    def test_dir_lists_public_names_only(self, module):
        assert set(dir(module)) - {*INTEGRATIONS} == set(module.__all__)

    def test_error_messages_name_public_classes(self):
        """Regression: ``ChannelOperator.__init__() missing ... 'epsilon'``."""
        for target in TARGETS:
            cls = target.cls
            for method, call in (("__init__", cls), ("__call__", cls(1e-5, **target.required))):
                with pytest.raises(TypeError, match=rf"^{cls.__name__}\.{method}\(\) missing"):
                    call()

    @pytest.mark.parametrize("name", WITH_EXAMPLES)
    def test_examples_in_docstrings(self, name):
        source = importlib.import_module(name)
        globs = {"onedsl": onedsl, "np": np}
        result = doctest.testmod(source, extraglobs=globs, optionflags=doctest.NORMALIZE_WHITESPACE)
        assert result.failed == 0

    def test_attributes_of_modules_that_were_not_imported(self):
        """The errors contain the missing imports, which work or need the framework."""
        child = helpers.run_child(f"""
import onedsl

for name in {[*INTEGRATIONS]}:
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

    def test_unknown_attribute(self):
        with pytest.raises(AttributeError, match=r"'onedsl' has no attribute 'nonsense'$"):
            _ = onedsl.nonsense

    def test_import_is_silent_and_logs_nowhere(self):
        child = helpers.run_python("-W", "error", "-c", "import onedsl")
        assert (child.stdout, child.stderr) == ("", "")
        assert logging.getLogger("onedsl").handlers == []


class TestStub:
    """The stubs match the extensions."""

    @pytest.mark.parametrize("extension", ["_core", "_onednn"])
    def test_arity(self, extension):
        """Stubtest cannot check it, since pybind11 has its signatures in docstrings only."""
        module = importlib.import_module(f"onedsl.{extension}")
        nested = re.compile(r"[\[(][^\[\]()]*[\])]")
        tree = ast.parse((PACKAGE / f"{extension}.pyi").read_text())
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef) or node.decorator_list:
                continue
            owner = next(
                (c for c in tree.body if isinstance(c, ast.ClassDef) and node in c.body), None
            )
            target = getattr(module, owner.name) if owner else module
            signature = getattr(target, node.name).__doc__.splitlines()[0]
            args = node.args
            wanted = [*args.posonlyargs, *args.args, *args.kwonlyargs]
            inside = signature[signature.index("(") + 1 : signature.rindex(")")]
            while nested.search(inside):
                inside = nested.sub("", inside)
            names = [part for part in inside.split(", ") if part not in ("", "*", "/")]
            assert len(wanted) == len(names), node.name
