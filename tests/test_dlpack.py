"""DLPack: the protocol's fields and objects, valid and invalid.

The laws compare the bits of such arrays with those of NumPy's, for all dtypes, layouts and outputs.
Here are the fields and objects of the protocol, wrong ones included, which dlpack_producers.py
sets. PyTorch and JAX have separate tests.
"""

import ctypes
import gc
import sys
import types

import helpers
import numpy as np
import pytest
from dlpack_producers import (
    EXCHANGE_API,
    IS_COPIED,
    OTHER,
    READ_ONLY,
    VERSIONED,
    ExchangeApi,
    Foreign,
    Old,
    Taken,
    borrow,
    new_capsule,
    with_exchange_api,
)
from helpers import EPSILON
from programs.processes import resident

import onedsl
from onedsl import _core, testing

SHAPE = (6, 5, 3, 4)
PROBLEM = helpers.case(SHAPE, "f32", "f32", "NCX").problem


def gradients(problem, **kwargs):
    return onedsl.BatchNormTrainingBackward(EPSILON, "NCX")(*problem, **kwargs)


EXPECTED = gradients(PROBLEM)


def same(got, expected=EXPECTED):
    """Compare arrays, also those of the producers' library."""
    for a, b in zip(got, expected, strict=True):
        array = a.array if isinstance(a, Foreign | Taken) else a
        assert (array.dtype, array.strides) == (b.dtype, b.strides)
        assert array.tobytes() == b.tobytes()


def capsule_of(structure, name, function):
    """Return a capsule, and its destructor, which must live as long."""
    destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)
    pointer = ctypes.cast(destructor, ctypes.c_void_p)
    return new_capsule(ctypes.addressof(structure), name, pointer), destructor


class TestInputs:
    @pytest.mark.parametrize("make", [Foreign, Old])
    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"versioned": False},
            {"device": 3},
            {"device": 11},  # memory pinned by CUDA and ROCm
            {"flags": READ_ONLY},
            {"flags": IS_COPIED},
            {"strides": False},  # C order
            {"offset": 256},
        ],
        ids=str,
    )
    def test_results_have_the_kind_and_bits_of_the_inputs(self, make, changes):
        problem = helpers.case(SHAPE, "bf16", "f32", "NCX").problem
        got = gradients([make(a, **changes) for a in problem])
        assert all(type(member) is Taken for member in got)
        assert all(member.aligned for member in got), "JAX would copy these"
        same(got, gradients(problem))

    def test_the_library_of_src_is_that_of_the_results(self):
        """Also for graphs."""
        src, *rest = PROBLEM
        op = onedsl.BatchNormTrainingBackward(EPSILON, "NCX")
        graph = op.graph(onedsl.TensorSpec(SHAPE)).repaired().compile()
        expected = graph(**PROBLEM._asdict()).values()
        for kind, inputs in (
            (np.ndarray, [src, *map(Foreign, rest)]),
            (Taken, [Foreign(src), *rest]),
        ):
            got = gradients(inputs)
            of_graph = graph(**dict(zip(PROBLEM._fields, inputs, strict=True)))
            assert {*map(type, got), *map(type, of_graph.values())} == {kind}
            same(got)
            same(of_graph.values(), expected)

    def test_nothing_is_copied(self):
        array = np.zeros(SHAPE, helpers.NUMPY["bf16"])
        seen = _core.import_array(Foreign(array))
        assert (seen.ctypes.data, seen.dtype) == (array.ctypes.data, array.dtype)

    @pytest.mark.parametrize("namespace", [np, types.SimpleNamespace()], ids=["numpy", "empty"])
    def test_results_for_other_namespaces_are_numpy_arrays(self, namespace):
        """Of NumPy's from_dlpack, or without any."""
        alone = type("Alone", (Foreign,), {"__array_namespace__": lambda self: namespace})
        got = gradients([alone(a) for a in PROBLEM])
        assert type(got.diff_src) is np.ndarray
        same(got)

    def test_library_is_found_by_its_module(self, monkeypatch):
        module = types.ModuleType("some_library")
        module.from_dlpack = Taken
        monkeypatch.setitem(sys.modules, "some_library", module)

        class Plain:
            __module__ = "some_library.arrays"

            def __init__(self, array):
                self.foreign = Foreign(array)

            def __dlpack__(self, **kwargs):
                return self.foreign.__dlpack__(**kwargs)

            def __dlpack_device__(self):
                return 1, 0

        same(gradients(map(Plain, PROBLEM)))


WITH_C_FUNCTIONS = with_exchange_api(ExchangeApi.of(borrow_object=borrow))


class TestOut:
    def buffers(self, make=Foreign, **changes):
        return [make(np.full_like(a, np.nan), **changes) for a in EXPECTED]

    def test_out_while_another_thread_imports_pytorch(self, monkeypatch):
        """Regression: a module without names in sys.modules was an AttributeError."""
        monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
        out = self.buffers()
        assert all(a is b for a, b in zip(gradients(PROBLEM, out=out), out, strict=True))
        same(out)

    @pytest.mark.parametrize(
        ("make", "changes"),
        [
            (Foreign, {"flags": READ_ONLY}),
            (Foreign, {"flags": IS_COPIED}),
            (Foreign, {"versioned": False}),  # no flags: NumPy takes it for read-only as well
            # Regression: the C functions have no flag, so read-only arrays were written.
            (WITH_C_FUNCTIONS, {"flags": READ_ONLY}),
        ],
    )
    @pytest.mark.parametrize("which", [0, 1, 2])
    def test_read_only_out_is_rejected(self, make, changes, which):
        out = self.buffers(make)
        gradients(PROBLEM, out=out)
        same(out)
        out = self.buffers(make)
        out[which] = self.buffers(make, **changes)[which]
        with pytest.raises(ValueError, match=r"out\.diff_\w+ must be writable"):
            gradients(PROBLEM, out=out)
        assert all(np.isnan(member.array).all() for member in out)


ZEROS = np.zeros(SHAPE, np.float32)


def strange(**members):
    """Return a Foreign with other members."""
    return type("Strange", (Foreign,), members)(ZEROS)


def fail(self, **kwargs):
    raise BufferError("out of order today")


TYPES = [{"code": 0}, {"bits": 64}, {"lanes": 2}, {"code": 5, "bits": 64}, {"ndim": -1}]
INVALID = [
    (Foreign(ZEROS, device=2), ValueError, ["device", "2", "Move it to the CPU"]),
    (
        type("OfCuda", (Foreign,), {"device": "cuda:0"})(ZEROS, device=2),
        ValueError, ["got device cuda:0", "Move it to the CPU"],
    ),
    (
        type("Liar", (Foreign,), {"__dlpack_device__": lambda self: (1, 0)})(ZEROS, device=2),
        TypeError, ["Liar"],
    ),
    *((Foreign(ZEROS, **type_), TypeError, []) for type_ in TYPES),
    (
        strange(requires_grad=True),
        TypeError, ["must not require grad", "detach()", "onedsl.torch"],
    ),
    (
        strange(is_neg=lambda self: True, resolve_neg=lambda self: self),
        TypeError, ["negative", "resolve_neg()"],
    ),
    *(
        (strange(__dlpack__=lambda self, capsule=capsule, **_: capsule), TypeError, ["Strange"])
        for capsule in (None, 3, new_capsule(1, OTHER, None))
    ),
    *(
        (strange(**{method: fail}), TypeError, ["Strange", "out of order today"])
        for method in ("__dlpack__", "__dlpack_device__")
    ),
    *(
        (strange(__dlpack_device__=lambda self, device=device: device), (TypeError, ValueError), [])
        for device in (None, "cpu", (1,), (1, None), (2**40, 0))
    ),
    (strange(__getattr__=lambda self, name: lambda *_, **__: None), TypeError, []),
]  # fmt: skip


class TestInvalid:
    def check_rejected(self, value, error, words=()):
        for at, name in (0, "src"), (1, "diff_dst"), (4, "gamma"):
            with pytest.raises(error, match=f"^{name}") as caught:
                gradients([*PROBLEM[:at], value, *PROBLEM[at + 1 :]])
            for word in words:
                assert word in str(caught.value)

    @pytest.mark.parametrize(("value", "error", "words"), INVALID)
    def test_invalid_producers(self, value, error, words):
        self.check_rejected(value, error, words)

    @pytest.mark.parametrize("versioned", [True, False])
    @pytest.mark.parametrize("fast", [True, False], ids=["borrowed", "capsule"])
    @pytest.mark.parametrize(
        ("changes", "sizes"),
        [
            ({"ndim": 2**31 - 1, "shape": None}, None),
            ({"ndim": 65}, None),
            ({"ndim": 4, "shape": None}, None),
            ({}, (6, -5, 3, 4)),
            ({}, (6, 5, 2**62, 4)),
            ({}, (2**31, 2**31, 2**31, 0)),
            ({}, (0, 2**31, 2**31, 2**31)),
            ({}, (2**61, 1, 1, 1)),
            ({"strides": None}, (6, 5, 2**62, 4)),
        ],
    )
    def test_invalid_sizes(self, changes, sizes, fast, versioned):
        """Regression: a rank of 2^31 - 1 without sizes crashed."""
        kind = WITH_C_FUNCTIONS if fast else Foreign
        foreign = kind(ZEROS, versioned=versioned)
        tensor = foreign._managed.tensor
        for field, value in changes.items():
            setattr(tensor, field, value)
        if sizes is not None:
            for axis, size in enumerate(sizes):
                tensor.shape[axis] = size
        self.check_rejected(foreign, (TypeError, ValueError))

    @pytest.mark.parametrize("step", [2**61, 2**62, -(2**62)])
    def test_strides_that_overflow_in_bytes(self, step):
        """Regression: such a stride became that of adjacent items, and its elements were read."""
        foreign = Foreign(ZEROS)
        foreign._managed.tensor.strides[0] = step
        self.check_rejected(foreign, (TypeError, ValueError))

    def test_null_memory_and_a_future_version(self):
        foreign = Foreign(ZEROS)
        foreign._managed.tensor.data = None
        assert _core.import_array(foreign) == "invalid"
        assert _core.import_array(Foreign(ZEROS, major=2)) == "invalid"

    @pytest.mark.parametrize(
        "name", ["__dlpack__()", "requires_grad", "is_neg", "__array_namespace__"]
    )
    def test_keyboard_interrupt_propagates(self, name):
        """Regression: an attribute that was interrupted counted as absent."""

        def interrupt(self, **kwargs):
            raise KeyboardInterrupt

        attribute = interrupt if "()" in name else property(interrupt)
        slow = type("Slow", (Foreign,), {name.removesuffix("()"): attribute})(ZEROS)
        with pytest.raises(KeyboardInterrupt):
            gradients([slow, *PROBLEM[1:]])


class TestExchangeApi:
    """C functions of a library: any may be null, and any may fail."""

    @pytest.mark.parametrize(
        "functions",
        [
            {},
            {"borrow_object": borrow},
            {"borrow_object": lambda *_: -1},  # without a word: there is the capsule
            {"borrow_object": borrow, "major": 2},
        ],
        ids=["null", "borrow_only", "borrow_fails", "other_version"],
    )
    def test_null_functions(self, functions):
        kind = with_exchange_api(ExchangeApi.of(**functions))
        same(gradients([kind(a) for a in PROBLEM]))

    def test_capsule_lives_while_its_functions_are_used(self):
        """Regression: the capsule was released before the call, so its destructor ran first."""
        alive, kept, calls = set(), [], []

        def seen(foreign, tensor):
            calls.append(len(alive))
            return borrow(foreign, tensor)

        class NewCapsules(type):
            @property
            def __dlpack_c_exchange_api__(cls):
                functions = ExchangeApi.of(borrow_object=seen)
                capsule, destructor = capsule_of(functions, EXCHANGE_API, alive.discard)
                kept.append((functions, destructor))
                alive.add(id(capsule))
                return capsule

        kind = NewCapsules("New", (Foreign,), {})
        gradients([kind(a) for a in PROBLEM])
        assert calls
        assert all(calls)

    @pytest.mark.parametrize("port", ["diff_dst", "gamma"])
    @pytest.mark.parametrize("way", ["operator", "out", "reduce", "graph"])
    def test_an_argument_that_reshapes_those_before_it(self, port, way):
        """Regression: the sizes of src, which NumPy had freed, were read again."""
        problem = testing.random_problem((4, 3, 2, 16))
        op = onedsl.BatchNormTrainingBackward(EPSILON)
        expected = op(*problem)
        src = problem.src.copy()
        kept = []

        class Reshaping(WITH_C_FUNCTIONS):
            @property
            def requires_grad(self):
                src.shape = (-1,)
                kept.extend(np.empty((1, 2, 3, 4)) for _ in range(50))  # uses the freed sizes
                src.shape = (2, 1, 3, 2, 2, 1, 16)
                return False

        arrays = problem._replace(src=src)
        arrays = arrays._replace(**{port: Reshaping(getattr(problem, port))})
        if way == "graph":
            graph = op.graph(onedsl.TensorSpec(src.shape)).repaired().compile()
            results = graph(**arrays._asdict()).values()
        elif way == "reduce":
            sums = op.reduce(*arrays[:4]).to_vector()
            assert sums.tobytes() == op.reduce(*problem[:4]).to_vector().tobytes()
            return
        else:
            out = tuple(map(np.empty_like, expected)) if way == "out" else None
            results = op(*arrays, out=out)
        for got, want in zip(results, expected, strict=True):
            assert got.shape == want.shape
            if way == "graph":
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
            else:
                assert got.tobytes() == want.tobytes()


class TestLifetime:
    def test_capsules_are_freed_once_after_the_run(self):
        freed = []

        class Counted(Foreign):
            def __dlpack__(self, **kwargs):
                capsule, self.destructor = capsule_of(
                    self._managed, VERSIONED, lambda _: freed.append(self)
                )
                return capsule

        problem = [Counted(a) for a in PROBLEM]
        gradients(problem)
        assert sorted(map(id, freed)) == sorted(map(id, problem))

    @pytest.mark.parametrize("versioned", [True, False])
    def test_result_lives_as_long_as_its_capsule(self, versioned):

        class Here(Foreign):
            def __array_namespace__(self):
                return types.SimpleNamespace(from_dlpack=lambda p: Taken(p, versioned))

        got = gradients(map(Here, PROBLEM)).diff_src
        gc.collect()
        same([got], [EXPECTED.diff_src])

    def test_unused_capsules_do_not_leak(self, monkeypatch):
        array = np.zeros((1 << 18,), np.float32)
        problem = [Foreign(array.reshape(4, -1, 4)) for _ in range(2)]
        problem += [Foreign(np.ones(1 << 14, np.float32)) for _ in range(3)]
        kept = []

        class Space:
            from_dlpack = staticmethod(lambda p: kept.append(p.__dlpack__(max_version=(1, 0))))

        monkeypatch.setattr(Foreign, "__array_namespace__", lambda self: Space)
        op = onedsl.BatchNormTrainingBackward(EPSILON, "NCX")
        used = []
        for _ in range(300):  # malloc's heap grows during the first 100 calls
            op(*problem)
            kept.clear()
            used.append(resident())
        assert used[-1] - used[150] < 4 * array.nbytes
