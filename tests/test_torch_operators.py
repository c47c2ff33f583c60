"""onedsl's operators in PyTorch: registration, fake results, autograd, and errors.

The laws have the values of their real results, and second derivatives.
"""

import functools
import itertools

import helpers
import pytest
from cases import activations
from helpers import EPSILON
from torch_helpers import (
    DTYPES,
    LIMITS,
    SHAPES,
    dynamo,
    modes,
    onedsl_torch,
    relative_error,
    state,
    tensor,
    tensors,
    torch,
)

from onedsl import testing

tree_map_only = torch.utils._pytree.tree_map_only

forward = torch.ops.onedsl.batch_norm_training.default
backward = torch.ops.onedsl.batch_norm_training_backward.default
ACTIVATIONS = {row.name: row.parameter for row in activations.ACTIVATIONS}
SHAPES_BY_RANK = {2: (6, 5), 3: (4, 5, 7), 4: (4, 5, 3, 2), 5: (3, 5, 2, 3, 2)}


def layouts(shape):
    """Yield a tensor in each order of its axes, and in layouts that are not dense."""
    generator = torch.Generator().manual_seed(len(shape))
    values = torch.randn(shape, generator=generator)
    for order in itertools.permutations(range(len(shape))):
        inverse = sorted(range(len(shape)), key=order.__getitem__)
        yield values.permute(order).contiguous().permute(inverse)
    yield values.repeat_interleave(2, -1)[..., ::2]  # gaps
    yield values[:1].expand(shape)  # overlap
    yield values.as_strided(shape, [1] * len(shape))  # overlapping windows
    yield torch.cat([values.new_zeros(1), values.flatten()])[1:].view(shape)  # an offset


def calls(src, other=None, activations=("relu", "silu")):
    """Yield an operator and its arguments, for every kind of call.

    The tensor `other` is the residual, the result of a ReLU, and the gradient of the output.
    """
    weight, bias, mean, variance = state(src.shape[1])
    saved = src, mean, variance.rsqrt()
    other = src.flip(0) if other is None else other
    for activation in activations:
        own = activation, ACTIVATIONS[activation]
        for residual in None, other:
            yield forward, (src, weight, bias, residual, 1e-5, *own)
            yield backward, (other, *saved, weight, weight, bias, residual, None, *own)
    yield backward, (other, *saved, weight, *[None] * 3, other, "relu", 1.5)
    yield forward, (src, weight, bias, None, 1e-5, None, None)
    yield backward, (other, *saved, weight, *[None] * 6)
    yield forward, (src, None, None, None, 1e-5, None, None)
    yield backward, (other, *saved, *[None] * 7)


def kind(tensor):
    return tensor.shape, tensor.dtype, tensor.stride(), tensor.device.type


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", SHAPES_BY_RANK)
def test_real_and_fake_results_are_alike(rank, dtype):
    """Regression: the fake result had the strides of src where the real one was contiguous.

    The results are those of contiguous tensors. Each layout has one of the dtypes.
    """
    mode = torch._subclasses.FakeTensorMode()
    every = enumerate(layouts(SHAPES_BY_RANK[rank]))
    for i, made in itertools.islice(every, [*DTYPES].index(dtype), None, len(DTYPES)):
        src = made.to(DTYPES[dtype])
        other = src.flip(0).contiguous() if i % 2 else src.flip(0)
        copies = calls(src.contiguous(), other.contiguous())
        for (op, arguments), (_, dense) in zip(calls(src, other), copies, strict=True):
            real = op(*arguments)
            for a, b in zip(real, op(*dense), strict=True):
                assert relative_error(a, b) < LIMITS[src.dtype], (src.stride(), op)
            with mode:
                fake = op(*tree_map_only(torch.Tensor, mode.from_tensor, arguments))
            assert [*map(kind, real)] == [*map(kind, fake)], (src.stride(), op)
            assert real[0].stride() == torch.empty_like(src).stride()


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # opcheck's own, since 2.15
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_operators_are_registered_correctly(dtype):
    src = torch.randn(2, 4, 3, 5).to(DTYPES[dtype])
    for op, arguments in calls(src, activations=ACTIVATIONS):
        torch.library.opcheck(op, arguments)
    weight, bias, *_ = (t.requires_grad_() for t in state(4))
    src, residual = src.requires_grad_(), torch.randn_like(src).requires_grad_()
    for activation in "relu", "silu":
        given = src, weight, bias, residual, 1e-5, activation, None
        torch.library.opcheck(forward, given)


def test_the_mask_from_src_is_that_of_dst():
    """Bitwise: the gradient computes dst from the saved values exactly as the forward pass."""
    src = torch.randn(64, 5, 30, 30)
    weight, *_ = state()
    bias = torch.zeros(5)  # dst near 0 is common
    for clip, residual in itertools.product((None, 0.5), (None, src.flip(0))):
        outputs = forward(src, weight, bias, residual, 1e-5, "relu", clip)
        dst, *saved = outputs[:3]
        common = torch.ones_like(src), src, *saved, weight
        with helpers.run_records("Forward") as forward_runs:
            from_src = backward(*common, weight, bias, residual, None, "relu", clip)
        assert not forward_runs
        from_dst = backward(*common, None, None, None, dst, "relu", clip)
        for a, b in zip(from_src[:3], from_dst[:3], strict=True):
            assert torch.equal(a, b)
        assert residual is None or torch.equal(from_src[3], from_dst[3])
        inside = dst > 0 if clip is None else (dst > 0) & (dst < clip)
        assert torch.equal(from_dst[3], inside.float())


rejected = functools.partial(pytest.raises, (ValueError, RuntimeError))


@pytest.mark.parametrize(
    ("has_residual", "activation", "parameter", "reason"),
    [
        (True, None, None, "an addition without an activation"),
        (False, None, 0.1, "a parameter without an activation"),
        (True, "relu", float("nan"), "a parameter of relu of this value"),
        (True, "leaky_relu", float("nan"), "a parameter of leaky_relu of this value"),
        (True, "relu", 0.0, "a parameter of relu of this value"),
        (True, "relu", float("inf"), "a parameter of relu of this value"),
        (False, "silu", 0.1, "a parameter of silu of this value"),
        (False, "nothing", None, 'activation="nothing"'),
        (False, "none", None, 'activation="none"'),
    ],
)
def test_unsupported_activations(has_residual, activation, parameter, reason):
    """Every other reason: test_torch_kernels.py, and the law of rejected calls."""
    src, own = torch.randn(2, 5, 3, 5), (activation, parameter)
    residual = src if has_residual else None
    with rejected(match=f"onedsl's operators do not support .*{reason}"):
        forward(src, None, None, residual, 1e-5, *own)
    with rejected(match=f"onedsl's operators do not support .*{reason}"):
        backward(src, src, *torch.ones(2, 5), *[None] * 3, residual, None, *own)


def test_unsupported_arguments_of_the_gradient():
    src = torch.randn(2, 5, 3, 5)
    saved = src, src, *torch.ones(2, 5), None
    for residual, *own, reason in (
        (None, "silu", None, "dst with an activation whose derivative does not follow from it"),
        (None, "leaky_relu", -0.1, "dst with an activation whose derivative does not follow"),
        (src, "relu", None, "dst together with a residual"),
    ):
        with rejected(match=reason):
            backward(*saved, None, None, residual, src, *own)
    with rejected(match="one parameter, without the other"):
        backward(*saved, torch.ones(5), None, None, None, "relu", None)


def cut(tensor, offset, missing_bytes):
    """Return a copy at an offset of memory whose last bytes were freed."""
    memory = torch.cat([tensor.new_zeros(offset), tensor.flatten()])
    view = memory[offset:].view(tensor.shape)
    memory.untyped_storage().resize_(max(memory.nbytes - missing_bytes, 0))
    return view


@pytest.mark.parametrize(("offset", "missing_bytes"), [(0, 1), (7, 1), (7, 10_000)])
def test_tensors_without_memory(offset, missing_bytes):
    """Regression: the process ended. FSDP resizes the storage of parameters to 0."""
    for op, arguments in calls(torch.randn(4, 5, 3, 2)):
        for i, argument in enumerate(arguments):
            if isinstance(argument, torch.Tensor):
                name = op._schema.arguments[i].name.removeprefix("forward_")
                changed = cut(argument, offset, missing_bytes)
                with rejected(match=rf"storage .*\({name}\)"):
                    op(*arguments[:i], changed, *arguments[i + 1 :])


def test_tensors_without_memory_in_the_passes():
    """Those of SyncBatchNorm. Parameters of 16 bits are converted.

    Regression: memory beyond them was read.
    """
    src, vector = torch.randn(4, 5, 3, 2), torch.rand(5) + 0.5
    for name, arguments, rest in (
        ("batch_norm_training", (src, *[vector] * 4), (0.1, 1e-5)),
        ("batch_norm_training_backward", (src, src, vector, vector, vector), ()),
    ):
        reduce, apply = (getattr(torch.ops.onedsl, f"{name}_{end}") for end in ("reduce", "apply"))
        totals = reduce(*arguments, *rest[1:])
        apply(totals, *arguments, *rest)
        with rejected(match="totals of another call"):
            apply(cut(totals, 3, 1), *arguments, *rest)
        for i, argument in enumerate(arguments):
            for given in (argument, argument.bfloat16()) if argument is vector else (argument,):
                changed = (*arguments[:i], cut(given, 3, 1), *arguments[i + 1 :])
                with rejected(match="storage was made too small"):
                    reduce(*changed, *rest[1:])
                with rejected(match="storage was made too small"):
                    apply(totals, *changed, *rest)


def test_vectors_in_another_layout():
    """Regression: unaligned ones raised, and fake tensors do not show alignment."""
    memory = bytearray(4 * 5 + 1)
    for op, arguments in calls(torch.randn(4, 5, 3, 2)):
        expected = op(*arguments)
        for i, argument in enumerate(arguments):
            if isinstance(argument, torch.Tensor) and argument.ndim == 1:
                unaligned = torch.frombuffer(memory, dtype=torch.float32, offset=1)
                unaligned.copy_(argument)
                for other in unaligned, argument.repeat_interleave(2)[::2]:
                    got = op(*arguments[:i], other, *arguments[i + 1 :])
                    assert all(map(torch.equal, got, expected))


def test_errors_of_pytorch_are_its_own():
    """Regression: every one was "a function of PyTorch failed"."""
    if torch.__version__ < "2.12":
        pytest.skip("PyTorch 2.11 has no function that returns the message")
    unaligned = torch.frombuffer(bytearray(5), dtype=torch.float32, offset=1)  # is copied
    huge = unaligned.view(1, 1, 1).expand(1 << 40, 4, 1 << 10)
    with pytest.raises(RuntimeError, match="allocate"):
        forward(huge, None, None, None, 1e-5, None, None)


@pytest.mark.parametrize("own", ACTIVATIONS.items(), ids=ACTIVATIONS)
def test_gradients_that_can_be_differentiated_again_are_the_same(own):
    """Also if some inputs need no gradient; hooks of the inputs run once."""
    values = torch.randn(4, 5, 3, 3), torch.randn(4, 5, 3, 3), torch.rand(5)
    for needed in itertools.product([True, False], repeat=3):
        tensors = [t.clone().requires_grad_(n) for t, n in zip(values, needed, strict=True)]
        inputs = [t for t in tensors if t.requires_grad]
        hooked: list[None] = []
        for t in inputs:
            t.register_hook(lambda gradient, hooked=hooked: hooked.append(None))
        found = []
        for create_graph in (False, True) if inputs else ():
            src, residual, weight = tensors
            dst = forward(src, weight, None, residual, 1e-5, *own)[0]
            found.append(torch.autograd.grad(dst.cos().sum(), inputs, create_graph=create_graph))
        assert len(hooked) == 2 * len(inputs)
        for first, again in zip(*found, strict=True):
            assert torch.allclose(first, again, rtol=1e-4, atol=1e-5)


# batch_norm_backward


@helpers.types
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
def test_frozen_statistics_of_any_dtype(dtype, stats, data_format):
    """BatchNormalizationGrad has fewer dtypes. tests/laws has the statistics of the batch.

    diff_src has the strides of torch.empty_like(src). Regression: inductor rejected others.
    """
    problem = helpers.case((4, 6, 5, 6), dtype, stats, data_format).problem
    options = {"epsilon": EPSILON, "data_format": data_format, "statistics": "frozen"}
    src, diff_dst, *vectors = map(tensor, problem)
    diff_dst = diff_dst.transpose(1, 2).contiguous().transpose(1, 2)
    got = onedsl_torch.batch_norm_backward(src, diff_dst, *vectors, **options)
    testing.assert_close(got, testing.batch_norm_backward(*problem, **options))
    assert got.diff_src.stride() == torch.empty_like(src).stride()
    expanded = src[:1].expand(src.shape)
    found = (
        onedsl_torch.batch_norm_backward(each, diff_dst, *vectors, **options)
        for each in (expanded, expanded.clone())
    )
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)
        assert ours.stride() == theirs.stride()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data_format": "NHWC"}, "data_format"),
        ({"statistics": "running"}, "statistics must be"),
        ({"output_mask": True}, "output_mask must be three bools, got True"),
        ({"output_mask": "all"}, "output_mask must be three bools, got 'all'"),
    ],
)
def test_invalid_attributes_of_batch_norm_backward(change, message):
    with pytest.raises(ValueError, match=message):
        onedsl_torch.batch_norm_backward(*tensors(SHAPES[2], "f32"), epsilon=EPSILON, **change)


@pytest.mark.parametrize("statistics", ["batch", "frozen"])
def test_invalid_tensors_of_batch_norm_backward(statistics):
    src, diff_dst, *vectors = tensors(SHAPES[2], "f32")
    call = functools.partial(
        onedsl_torch.batch_norm_backward, epsilon=EPSILON, statistics=statistics
    )
    with pytest.raises(TypeError, match="mean must be a tensor, got NoneType"):
        call(src, diff_dst, None, *vectors[1:])
    with rejected(match=r"is not the input's \(diff_dst\)"):
        call(src, diff_dst.bfloat16(), *vectors)
    for i, vector in enumerate(vectors):
        for other in vector[:1], vector.double(), vector.long():
            with rejected(match="parameters and statistics"):
                call(src, diff_dst, *vectors[:i], other, *vectors[i + 1 :])
    gaps = src.repeat_interleave(2, -1)[..., ::2]
    gaps.untyped_storage().resize_(src.nbytes)
    for each in cut(src, 9, 10_000), gaps:  # regression: the process ended
        with rejected(match=r"storage .*\(src\)"):
            call(each, diff_dst, *vectors)


@modes
@pytest.mark.parametrize("shape", [(1, 3), (0, 3, 2), (4, 0, 2)], ids=str)
def test_few_values(shape, train):
    """PyTorch's own kernel ends the process for tensors without elements."""
    problem = testing.random_problem(shape, data_format="NCX")
    options = {"epsilon": EPSILON, "data_format": "NCX"}
    options["statistics"] = "batch" if train else "frozen"
    got = onedsl_torch.batch_norm_backward(*map(tensor, problem), **options)
    testing.assert_close(got, testing.batch_norm_backward(*problem, **options))


@pytest.mark.parametrize("mask", list(itertools.product([True, False], repeat=3)), ids=str)
def test_output_mask_is_that_of_pytorch(mask):
    """Also gamma affects diff_src as the only output."""
    src, diff_dst, mean, variance, gamma = tensors(SHAPES[2], "f32")
    inputs = diff_dst, src, gamma, None, None, mean, (variance + EPSILON).rsqrt()
    wanted = torch.ops.aten.native_batch_norm_backward(*inputs, True, EPSILON, mask)
    call = onedsl_torch.batch_norm_backward
    src.requires_grad_()
    got = call(src, diff_dst, mean, variance, gamma, epsilon=EPSILON, output_mask=mask)
    for ours, theirs in zip(got, wanted, strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    if any(mask):  # the second derivatives with respect to the returned gradients
        (second,) = torch.autograd.grad([t.sum() for t in got if t is not None], src)
        every = call(src, diff_dst, mean, variance, gamma, epsilon=EPSILON)
        kept = [t.sum() for t, keep in zip(every, mask, strict=True) if keep]
        assert torch.equal(second, torch.autograd.grad(kept, src)[0])


@pytest.mark.parametrize("changed", [0, 1, 2, 4])
def test_arguments_modified_before_the_second_derivative_raise(changed):
    """But the variance, which the call converts."""
    arguments = tensors(SHAPES[2], "f32")
    arguments[0].requires_grad_()
    diff_src = onedsl_torch.batch_norm_backward(*arguments, epsilon=EPSILON).diff_src
    with torch.no_grad():
        arguments[changed].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        diff_src.sum().backward()


@modes
def test_derivatives_of_every_order(train):
    """Regression: from the third on, mean and variance were constants, as they are in PyTorch."""
    problem = [t.double() for t in tensors((4, 3, 5, 2), "f32")]
    src, diff_dst, *_, gamma = problem
    axes = [0, 2, 3]
    mean, variance = src.mean(axes), src.var(axes, correction=0)
    options = {"epsilon": 1e-3, "statistics": "batch" if train else "frozen"}

    def ours(src, diff_dst, gamma):
        saved = mean.float(), variance.float()
        return onedsl_torch.batch_norm_backward(src, diff_dst, *saved, gamma, **options)

    def formulas(src, diff_dst, gamma):
        m, v = (src.mean(axes), src.var(axes, correction=0)) if train else (mean, variance)
        m, r, g = (t.view(-1, 1, 1) for t in (m, (v + 1e-3).rsqrt(), gamma))
        xhat = (src - m) * r
        diff_gamma, diff_beta = (diff_dst * xhat).sum(axes), diff_dst.sum(axes)
        count = src.numel() / len(gamma)
        projected = diff_beta.view(-1, 1, 1) + xhat * diff_gamma.view(-1, 1, 1)
        return g * r * (diff_dst - train * projected / count), diff_gamma, diff_beta

    def derivatives(function, dtype):
        inputs = [t.to(dtype).requires_grad_() for t in (src, diff_dst, gamma)]
        results = function(*inputs)
        for _ in range(3):
            total = sum((t * t.detach().sin() + t.square()).sum() for t in results)
            results = torch.autograd.grad(total, inputs, create_graph=True, materialize_grads=True)
            yield results

    pairs = zip(derivatives(ours, torch.float32), derivatives(formulas, torch.float64), strict=True)
    for order, (found, expected) in enumerate(pairs, 2):
        for a, b in zip(found, expected, strict=True):
            assert relative_error(a, b) < 2e-4, order


@dynamo
@modes
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
def test_the_function_and_its_derivative_compile_to_one_graph(data_format, train):
    problem = tensors((4, 5, 6, 5), "f32")
    problem[0].requires_grad_()
    options = {"data_format": data_format, "statistics": "batch" if train else "frozen"}

    def gradients(*tensors):
        return onedsl_torch.batch_norm_backward(*tensors, epsilon=1e-5, **options)

    def derivative(results):
        return torch.autograd.grad(results[0].sin().sum(), problem[0])[0]

    compiled = torch.compile(gradients, fullgraph=True, backend="aot_eager")
    found, expected = compiled(*problem), gradients(*problem)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)
    assert torch.allclose(derivative(found), derivative(expected), rtol=1e-4, atol=1e-5)
