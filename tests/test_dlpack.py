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


def same(got, expected):
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype
        assert a.strides == b.strides
        assert a.tobytes() == b.tobytes()


class TestInputs:
    @pytest.mark.parametrize("make", [Foreign, Old])
    @pytest.mark.parametrize("versioned", [True, False])
    def test_results_have_the_same_kind_and_bits(self, make, versioned):
        problem = helpers.case(SHAPE, "bf16", "f32", "NCX").problem
        got = gradients([make(a, versioned=versioned) for a in problem])
        assert all(type(member) is Taken for member in got)
        assert all(member.aligned for member in got), "JAX would copy these"
        same([member.array for member in got], gradients(problem))

    @pytest.mark.parametrize(
        "changes",
        [
            {"device": 3},
            {"device": 11},  # memory pinned by CUDA and ROCm
            {"flags": READ_ONLY},
            {"flags": IS_COPIED},
            {"strides": False},  # C order
            {"offset": 256},
        ],
        ids=str,
    )
    def test_valid_fields(self, changes):
        problem = helpers.case(SHAPE, "bf16", "f32", "NCX").problem
        got = gradients([Foreign(a, **changes) for a in problem])
        same([member.array for member in got], gradients(problem))

    def test_mixed_libraries(self):
        expected = gradients(PROBLEM)
        src, *rest = PROBLEM
        same(gradients([src, *map(Foreign, rest)]), expected)
        same([m.array for m in gradients([Foreign(src), *rest])], expected)

    def test_nothing_is_copied(self):
        array = np.zeros(SHAPE, helpers.NUMPY["bf16"])
        seen = _core.import_array(Foreign(array))
        assert seen.ctypes.data == array.ctypes.data
        assert seen.dtype == array.dtype

    @pytest.mark.parametrize("namespace", [np, types.SimpleNamespace()], ids=["numpy", "empty"])
    def test_results_for_other_namespaces_are_numpy_arrays(self, namespace):
        """Of NumPy's from_dlpack, or without any."""
        alone = type("Alone", (Foreign,), {"__array_namespace__": lambda self: namespace})
        got = gradients([alone(a) for a in PROBLEM])
        assert type(got.diff_src) is np.ndarray
        same(got, gradients(PROBLEM))

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

        same([m.array for m in gradients(map(Plain, PROBLEM))], gradients(PROBLEM))


class TestOut:
    def buffers(self, problem, **changes):
        return [Foreign(np.full_like(a, np.nan), **changes) for a in (problem[0], *problem[3:])]

    def test_out_is_written_directly(self):
        """Also with inputs of NumPy."""
        out = onedsl.BatchNormGradients(*self.buffers(PROBLEM))
        assert gradients(PROBLEM, out=out) is out
        same([member.array for member in out], gradients(PROBLEM))

    def test_out_while_another_thread_imports_pytorch(self, monkeypatch):
        """Regression: a module without names in sys.modules was an AttributeError."""
        monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
        out = tuple(self.buffers(PROBLEM))
        assert all(a is b for a, b in zip(gradients(PROBLEM, out=out), out, strict=True))

    @pytest.mark.parametrize(
        "changes",
        [{"flags": READ_ONLY}, {"flags": IS_COPIED}, {"versioned": False}],
        ids=["read_only", "copied", "unversioned"],
    )
    @pytest.mark.parametrize("which", [0, 1, 2])
    def test_read_only_out_is_rejected(self, changes, which):
        """An unversioned capsule cannot say whether it may be; NumPy takes it for a no as well."""
        out = self.buffers(PROBLEM)
        out[which] = self.buffers(PROBLEM, **changes)[which]
        with pytest.raises(ValueError, match=r"out\.diff_\w+ must be writable"):
            gradients(PROBLEM, out=tuple(out))
        assert all(np.isnan(member.array).all() for member in out)

    @pytest.mark.parametrize("flags", [0, READ_ONLY])
    def test_read_only_flag_of_a_library_with_c_functions(self, flags):
        """Regression: the C functions have no flag, so read-only arrays were written."""
        fast = with_exchange_api(ExchangeApi.of(borrow_object=borrow))
        out = [fast(member.array, flags=flags) for member in self.buffers(PROBLEM)]
        if flags == READ_ONLY:
            with pytest.raises(ValueError, match=r"out\.diff_src must be writable"):
                gradients(PROBLEM, out=tuple(out))
            assert np.isnan([member.array.max() for member in out]).all()
        else:
            gradients(PROBLEM, out=tuple(out))
            same([member.array for member in out], gradients(PROBLEM))


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
        problem = list(PROBLEM)
        for at in 0, 1, 4:
            arguments = [*problem[:at], value, *problem[at + 1 :]]
            with pytest.raises(error) as caught:
                gradients(arguments)
            message = str(caught.value)
            assert message.startswith(("src", "diff_dst", "mean", "variance", "gamma")[at])
            for word in words:
                assert word in message

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
        kind = with_exchange_api(ExchangeApi.of(borrow_object=borrow)) if fast else Foreign
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

    def run(self, **functions):
        kind = with_exchange_api(ExchangeApi.of(**functions))
        return gradients([kind(a) for a in PROBLEM])

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
        expected = gradients(PROBLEM)
        same([member.array for member in self.run(**functions)], expected)

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
                destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(alive.discard)
                kept.append((functions, destructor))
                capsule = new_capsule(
                    ctypes.addressof(functions),
                    EXCHANGE_API,
                    ctypes.cast(destructor, ctypes.c_void_p),
                )
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

        class Reshaping(with_exchange_api(ExchangeApi.of(borrow_object=borrow))):
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
                destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: freed.append(self))
                self.destructor = destructor
                return new_capsule(
                    ctypes.addressof(self._managed),
                    VERSIONED,
                    ctypes.cast(destructor, ctypes.c_void_p),
                )

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
        same([got.array], [gradients(PROBLEM).diff_src])

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
