"""PyTorch's tensors as arguments and results of the operators: what they have that arrays do not.

The laws compare their bits with those of NumPy's arrays.
"""

import itertools

import helpers
import numpy as np
import pytest
from helpers import EPSILON
from torch_helpers import SHAPES, dtypes, memories, nn, tensors, torch

import onedsl
from onedsl import _core, testing

gradient = onedsl.BatchNormTrainingBackward(EPSILON, "NCX")
NAMES = ("src", "diff_dst", "mean", "variance", "gamma")


@helpers.types
def test_dtypes_and_references(dtype, stats):
    """References accept tensors, too. The laws have the results of operators."""
    problem = tensors(SHAPES[2], dtype, stats)
    got = gradient(*problem)
    assert all(type(t) is torch.Tensor for t in got)
    assert onedsl.TensorSpec((2, 3), problem[0].dtype) == onedsl.TensorSpec((2, 3), dtype)
    wanted = helpers.case(SHAPES[2], dtype, stats, "NCX").expected
    again = testing.batch_norm_backward(*problem, epsilon=EPSILON, data_format="NCX")
    assert testing.relative_l2(again.diff_src, wanted.diff_src) < 1e-14


@memories
def test_results_are_in_pytorchs_memory(rank, memory):
    """They can be resized, also those of graphs, which return the tensors of `out`."""
    problem = tensors(SHAPES[rank], "f32", "f32", memory)
    graph = gradient.graph(onedsl.TensorSpec.of(problem[0])).repaired().compile()
    out = {"diff_beta": torch.empty(len(problem[2]))}
    of_graph = graph(**dict(zip(NAMES, problem, strict=True)), out=out)
    assert of_graph["diff_beta"] is out["diff_beta"]
    assert torch.allclose(out["diff_beta"], gradient(*problem).diff_beta, rtol=1e-4, atol=1e-5)
    for t in *gradient(*problem), *of_graph.values():
        values = t.as_strided((t.numel(),), (1,)).clone()
        assert torch.equal(t.resize_(2 * len(values))[: len(values)], values)


@pytest.mark.parametrize("missing_bytes", [1, 10**6])
@pytest.mark.parametrize("offset", [0, 7])
def test_storages_that_were_made_too_small(offset, missing_bytes):
    """Regression: memory beyond them was read and written."""
    problem = tensors(SHAPES[2], "f32")
    graph = gradient.graph(onedsl.TensorSpec.of(problem[0])).repaired().compile()
    arrays = [*problem, *gradient(*problem)]
    for i, t in enumerate(arrays):
        memory = torch.cat([t.new_zeros(offset), t.flatten()])
        cut = memory[offset:].view(t.shape)
        memory.untyped_storage().resize_(max(memory.nbytes - missing_bytes, 0))
        changed = [*arrays[:i], cut, *arrays[i + 1 :]]
        inputs, out = dict(zip(NAMES, changed, strict=False)), tuple(changed[5:])
        with pytest.raises((TypeError, ValueError), match=r"must .* memory"):
            gradient(*inputs.values(), out=out)
        with pytest.raises((TypeError, ValueError), match=r"must .* memory"):
            graph(**inputs, out=dict(zip(graph.graph.outputs, out, strict=True)))


def test_modes_of_pytorch():
    """Results are tensors with memory, or the call raises."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    problem = tensors(SHAPES[2], "f32")
    expected = gradient(*problem)
    for mode in torch.inference_mode(), torch.device("meta"):
        with mode:
            got = gradient(*problem)
        assert all(map(torch.equal, got, expected))
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        pytest.raises(RuntimeError, match="a tensor without memory"),
        pytest.warns(UserWarning, match="data pointer of FakeTensor"),
    ):
        gradient(*problem)


@pytest.mark.parametrize(
    ("op", "reduced"), [(gradient, 4), (onedsl.BatchNormForwardTraining(EPSILON, 0.9, "NCX"), 1)]
)
def test_parts_of_tensors(op, reduced):
    values = helpers.values_of(testing.random_problem((6, 5, 3), data_format="NCX"))
    arrays = [values[port.name] for port in op._schema.inputs]
    given = [torch.from_numpy(array) for array in arrays]
    totals = op.reduce(*given[:reduced])
    assert totals == op.reduce(*arrays[:reduced])
    result = op.apply(totals, *given)
    assert all(isinstance(a, torch.Tensor) for a in result)
    assert [a.numpy().tobytes() for a in result] == [a.tobytes() for a in op(*arrays)]
    assert type(totals).from_vector(torch.from_numpy(totals.to_vector())) == totals


@pytest.mark.parametrize("at", range(5))
def test_more_dimensions_than_numpy_has(at):
    """Regression: NumPy's error message names no argument."""
    problem = list(tensors(SHAPES[2], "f32"))
    problem[at] = torch.zeros([1] * 65)
    with pytest.raises(ValueError, match=f"{NAMES[at]} must have at most 64 dimensions, got 65"):
        gradient(*problem)


@pytest.mark.parametrize("kind", ["native", "onednn", "strided"])
@pytest.mark.parametrize("in_torch", list(itertools.product([False, True], repeat=3)), ids=str)
def test_every_tensor_of_out_is_marked_as_written(in_torch, kind):
    """Regression: only the first member was checked, and autograd used overwritten values."""
    src, *rest = (t.numpy() for t in tensors(SHAPES[2], "f32"))
    if kind == "strided":
        src = np.repeat(src, 2, -1)[..., ::2]
    expected = gradient(src, *rest)
    out = tuple(
        torch.zeros(a.shape) if tensor else np.zeros_like(a)
        for a, tensor in zip(expected, in_torch, strict=True)
    )
    got = gradient(src, *rest, out=out, backend="onednn" if kind == "onednn" else "auto")
    for returned, member, wanted in zip(got, out, expected, strict=True):
        assert returned is member
        np.testing.assert_allclose(member, wanted, *((1e-5, 1e-5) if kind == "onednn" else (0, 0)))
        assert getattr(member, "_version", 1) == 1


@pytest.mark.parametrize("kind", [tuple, list])  # a list is converted first
def test_diff_src_alone_is_marked_as_written(kind):
    x, ones = torch.ones(6, 4), torch.ones(4)
    out = torch.zeros(6, 4)
    op = onedsl.BatchNormTrainingBackward(EPSILON)
    op(x, x, ones, ones, outputs="diff_src", out=kind([out, None, None]))
    assert out._version == 1


@pytest.mark.parametrize("memory", ["contiguous", "channels_last"])
@dtypes
def test_tensors_are_not_copied(dtype, memory):
    src = tensors(SHAPES[2], dtype, memory=memory)[0]
    seen = _core.import_array(src)
    assert seen.ctypes.data == src.data_ptr()
    assert [s // seen.itemsize for s in seen.strides] == list(src.stride())
    shared = _core.export_array(seen, src)
    assert shared.data_ptr() == src.data_ptr()


@pytest.mark.parametrize(
    ("make", "error", "messages"),
    [
        (lambda t: t.requires_grad_(), TypeError, ["must not require grad", "src.detach()"]),
        (lambda t: t.to("meta"), (TypeError, ValueError), ["meta"]),
        (lambda t: t.double(), TypeError, ["float64"]),
        (lambda t: t.to_sparse(), TypeError, ["Tensor"]),
        (lambda t: torch.complex(t, t).conj().imag, TypeError, ["resolve_neg()"]),
        (lambda t: torch._efficientzerotensor(t.shape), TypeError, ["Tensor"]),
    ],
    ids=["requires_grad", "meta", "float64", "sparse", "negative", "zero_tensor"],
)
def test_invalid_tensors(make, error, messages):
    src, *rest = tensors(SHAPES[2], "f32")
    with pytest.raises(error) as caught:
        gradient(make(src), *rest)
    assert str(caught.value).startswith("src")
    assert all(message in str(caught.value) for message in messages)


def test_tensors_without_memory():
    """Fake tensors, and the wrappers of vmap and grad."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    src, *rest = tensors(SHAPES[2], "f32")
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(src)
        with pytest.raises(TypeError, match=r"src must export .* memory .*, got FakeTensor"):
            gradient(fake, *rest)
    with pytest.raises(TypeError, match=r"src must export its memory .*, got Tensor"):
        torch.vmap(lambda t: gradient(t, *rest).diff_src)(torch.stack([src, src]))
    with pytest.raises(TypeError, match="src must not require grad"):
        torch.func.grad(lambda t: gradient(t, *rest).diff_src.sum())(src)


def test_a_parameter_without_requires_grad():
    *inputs, gamma = tensors(SHAPES[2], "f32")
    got = gradient(*inputs, nn.Parameter(gamma, requires_grad=False))
    assert all(torch.equal(a, b) for a, b in zip(got, gradient(*inputs, gamma), strict=True))


def test_strides_that_are_no_multiples_of_items():
    """Rounded down to items, the strides of the packed array are those of the tensor."""
    src, diff_dst = np.random.default_rng(0).standard_normal((2, 64, 1), np.float32)
    packed = np.zeros(src.shape, np.dtype([("item", "f4"), ("other", "i2")]))["item"]
    packed[...] = diff_dst
    one = torch.ones(1)
    results = gradient(torch.from_numpy(src), packed, one, one, one)
    expected = gradient(src, diff_dst, *[np.ones(1, np.float32)] * 3)
    assert all(map(np.array_equal, results, expected))
