"""SyncBatchNorm on several processes against float64 batch norm of the whole batch.

The laws have all dtypes, layouts and ranks, with a simulated exchange. Here are real exchanges,
attributes of the layer, failures of one process, and the conversion of models.
"""

import copy
import datetime
import inspect
from typing import Any, NamedTuple

import helpers
import numpy as np
import pytest
from ranks import Ranks, caught, on_ranks
from torch_helpers import DTYPES, WITHOUT_BIAS, dynamo, modes, nn, onedsl_torch, step, torch

from onedsl import testing

distributed = torch.distributed


@pytest.fixture(scope="module")
def ranks():
    with Ranks() as pool:
        yield pool


REJECTED_BY_A_KERNEL = "ValueError", "RuntimeError"
"""The types of std::invalid_argument in PyTorch 2.13 and in 2.15."""


def random(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def problem(shape=(4, 5, 3, 3), dtype="f32", memory=torch.contiguous_format):
    """Return the input of the whole batch and the gradient of its output."""
    made = (random(*shape, seed=0) * 2 + 3, random(*shape, seed=1))
    return [t.to(DTYPES[dtype]).contiguous(memory_format=memory) for t in made]


def part(rank, sizes, *tensors):
    """Return copies of a rank's part of the batch, in the same memory format."""
    begin = sum(sizes[:rank])
    return [
        t[begin : begin + sizes[rank]].clone(memory_format=torch.preserve_format) for t in tensors
    ]


def new_layer(channels=5, **kwargs):
    layer = onedsl_torch.SyncBatchNorm(channels, **kwargs)
    for i, t in enumerate((*layer.parameters(), *layer.buffers())):
        if t.is_floating_point():
            t.data.copy_(random(channels, seed=10 + i).abs() + 0.5)
    return layer


def numpy(tensors):
    """Convert tensors to NumPy arrays of float64 or integers, which pickle without file handles."""
    return {
        name: None if t is None else (t.double() if t.is_floating_point() else t).numpy()
        for name, t in tensors.items()
    }


def as_plain(layer):
    """Return a copy of a layer, or of a model, with PyTorch's batch norm."""
    twin = copy.deepcopy(layer)
    for module in twin.modules():
        if isinstance(module, onedsl_torch.SyncBatchNorm):
            module.__class__ = nn.BatchNorm2d
    return twin


def exact_step(layer, src, diff_dst):
    """Compute a step on the whole batch with PyTorch's batch norm in float64."""
    return numpy(step(as_plain(layer).double(), src.double(), diff_dst.double()))


def join(results):
    """Join the ranks' results: concatenate tensors, add gradients of parameters."""
    joined = dict(results[0])
    for name, first in results[0].items():
        if name in ("dst", "diff_src"):
            joined[name] = np.concatenate([r[name] for r in results])
        elif name.startswith("diff_") and first is not None:
            joined[name] = np.sum([r[name] for r in results], axis=0)
    return joined


def check_results(results, expected, dtype="f32", state="f32"):
    got = join(results)
    for result in results[1:]:
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            assert (name in result) == (name in expected)
            if name in result:
                assert np.array_equal(result[name], got[name]), f"{name} differs from rank to rank"
    assert got.keys() == expected.keys()
    for name, reference in expected.items():
        if reference is None or got[name] is None:
            assert got[name] is reference, name
            continue
        tensors = name in ("dst", "diff_src")
        tolerances = testing.TOLERANCES if tensors else testing.SUM_TOLERANCES
        allowed = tolerances[dtype if tensors else state]
        if name in ("diff_weight", "diff_bias"):
            allowed *= len(results)  # each rank rounds its own sum
        assert testing.relative_l2(got[name], reference) <= allowed, name


class SyncCase(NamedTuple):
    """A layer and the batch sizes of the ranks that train it."""

    sizes: tuple[int, ...] = (1, 3)
    dtype: str = "f32"
    memory: torch.memory_format = torch.contiguous_format
    options: dict[str, Any] | None = None
    frozen: str = ""
    absent: str = ""
    state: str = "f32"

    def layer(self):
        made = new_layer(19, **(self.options or {})).to(DTYPES[self.state])
        if self.frozen:
            getattr(made, self.frozen).requires_grad_(False)
        if self.absent:
            setattr(made, self.absent, None)
        return made

    def problem(self):
        return problem((sum(self.sizes), 19, 5, 6), self.dtype, self.memory)


CASES = {
    "one process": SyncCase((4,)),
    "uneven": SyncCase((1, 4), memory=torch.channels_last),
    "one empty": SyncCase((2, 0, 3), "bf16", torch.channels_last),
    "even": SyncCase((1, 1, 1, 1), "f16"),
    "momentum None": SyncCase(options={"momentum": None}),
    "no affine": SyncCase(options={"affine": False}),
    **({"no bias": SyncCase(options=WITHOUT_BIAS[0])} if WITHOUT_BIAS else {}),
    "no weight": SyncCase(absent="weight"),
    "no running statistics": SyncCase(options={"track_running_stats": False}),
    "frozen weight": SyncCase(frozen="weight"),
    "frozen bias": SyncCase(frozen="bias"),
    "model in bfloat16": SyncCase(dtype="bf16", state="bf16"),
}


def steps(rank, case):
    """Return the results of a training step, and compare evaluation with plain batch norm."""
    layer, tensors = case.layer(), part(rank, case.sizes, *case.problem())
    results = step(layer, *tensors)
    assert results["dst"].dtype == results["diff_src"].dtype == DTYPES[case.dtype]
    if case.sizes[rank]:
        assert results["dst"].stride() == results["diff_src"].stride() == tensors[0].stride()
    kinds = {t.dtype for name, t in results.items() if t is not None and "run" in name}
    assert kinds <= {DTYPES[case.state]}
    results = numpy(results)
    layer.zero_grad()
    plain = as_plain(layer)
    for ours, theirs in zip(
        *(step(each.eval(), *tensors).values() for each in (layer, plain)), strict=True
    ):
        assert ours is theirs is None or torch.equal(ours, theirs)
    return results


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_whole_batch(ranks, name):
    case = CASES[name]
    results = ranks.run(len(case.sizes), steps, case)
    check_results(results, exact_step(case.layer(), *case.problem()), case.dtype, case.state)


def same_part_everywhere(_rank):
    return numpy(step(new_layer(33), *problem((7, 33, 5, 3))))


def test_every_rank_computes_the_same_bits(ranks):
    first, *others = ranks.run(3, same_part_everywhere)
    for other in others:
        for name, value in first.items():
            assert np.array_equal(other[name], value), name


@on_ranks(2)
def test_empty_batches_on_all_ranks(rank):
    layer = new_layer(3)
    before = copy.deepcopy(layer)
    results = step(layer, *problem((0, 3, 4, 4)))
    assert results["dst"].shape == results["diff_src"].shape == (0, 3, 4, 4)
    assert torch.equal(layer.running_mean, before.running_mean)
    assert torch.equal(layer.running_var, before.running_var)
    assert results["num_batches_tracked"] == 1
    assert not results["diff_weight"].any()
    assert not results["diff_bias"].any()


@on_ranks(3)
def test_what_all_processes_together_must_have_raises_on_every_rank(rank):
    """The group remains usable. Regression: gloo aborted the process."""
    (one,), (valid,) = (
        part(rank, n, problem((sum(n), 3, 1, 1))[0]) for n in ((0, 1, 0), (1, 1, 2))
    )
    for channels, src, message in (
        (3, one, "the inputs of all processes together must have more than 1 value per channel"),
        (
            *(3 + rank, torch.ones(2, 3 + rank, 2, 2)),
            "num_features must be the same on all processes that call a layer together, got [3, 4,",
        ),
    ):
        kind, found = caught(new_layer(channels), src)
        assert (kind, found[: len(message)]) == ("ValueError", message)
        assert not caught(new_layer(3), valid)


@on_ranks(3)
def test_channels_are_compared_in_every_group(rank):
    """The first group has equal layers; the other layer of the second one has more channels."""
    first, second = distributed.new_group((0, 1)), distributed.new_group((0, 2))
    layer = new_layer(4 if rank == 2 else 3, process_group=first)
    src = torch.ones(2, layer.num_features, 2, 2)
    if rank != 2:
        assert not caught(layer, src)
    if rank != 1:
        layer.process_group = second
        kind, message = caught(layer, src)
        assert kind == "ValueError"
        assert message.endswith("got [3, 4]")


@on_ranks(2)
def test_infinity_in_the_batch_of_one_rank_gives_nan_on_all(rank):
    src, diff_dst = part(rank, (2, 2), *problem())
    if rank == 0:
        src[0, 1, 0, 0] = torch.inf
    results = step(new_layer(), src, diff_dst)
    for name in "dst", "diff_src":
        assert results[name].isnan().all((0, 2, 3)).tolist() == [False, True, False, False, False]
        assert results[name][:, 2:].isfinite().all()


def exchanges(run):
    """Return the kind of each exchange of a call, with the shape of what it sends."""
    with torch.profiler.profile(record_shapes=True) as profile:
        run()
    events = [event for event in profile.events() if event.name.startswith("c10d::")]
    return [(event.name, event.input_shapes[0]) for event in events]


@on_ranks(2)
def test_one_exchange_per_pass_and_none_in_evaluation(rank):
    """An all-to-all, whose messages gloo sends at once. Its other exchanges go around a ring."""
    src, diff_dst = part(rank, (2, 2), *problem())
    layer, kind, size = new_layer(), "c10d::alltoall_base_", 2 * 5 + 1
    # The first call compares the numbers of channels.
    expected = [(kind, [2, 1]), (kind, [2, size]), (kind, [2, size])]
    assert exchanges(lambda: step(layer, src, diff_dst)) == expected

    def without_gradient():
        layer(src).backward(diff_dst)  # that of src is not needed
        with torch.no_grad():
            layer(src)
        layer.eval()(src.requires_grad_()).backward(diff_dst)

    assert exchanges(without_gradient) == [(kind, [2, size])] * 2


def in_two_groups(rank):
    """Run a step in two groups of two ranks, and one in a group without this rank."""
    mine, others = (distributed.new_group(pair) for pair in ((0, 1), (2, 3)))
    mine, others = (mine, others) if rank < 2 else (others, mine)
    plain = as_plain(new_layer())
    tensors = part(rank, (1, 2, 3, 2), *problem((8, 5, 3, 3)))
    alone = [step(layer, *tensors) for layer in (new_layer(process_group=others), plain)]
    assert all(map(torch.equal, *(results.values() for results in alone)))
    return numpy(step(new_layer(process_group=mine), *tensors))


def test_groups_have_their_own_statistics(ranks):
    results = ranks.run(4, in_two_groups)
    tensors = problem((8, 5, 3, 3))
    for half, rows in ((slice(0, 2), slice(0, 3)), (slice(2, 4), slice(3, 8))):
        check_results(results[half], exact_step(new_layer(), *(t[rows] for t in tensors)))


@on_ranks(2)
def test_invalid_inputs(rank):
    layer = new_layer(3)
    src, diff_dst = problem((2, 3, 2, 2))
    for invalid, expected in (
        (src.double(), "input must be float32, bfloat16 or float16, got torch.float64"),
        (src.to("meta"), "input must be a strided CPU tensor, got torch.strided on meta"),
        (src[:, :2], "input must have 3 channels, got 2"),
        (src[0, 0, 0], "input must have shape (N, C, ...), got (2,)"),
        (src.to_sparse(), "input must be a strided CPU tensor, got torch.sparse_coo on cpu"),
    ):
        kind, message = caught(layer, invalid)
        assert kind == ("TypeError" if invalid.dtype is torch.float64 else "ValueError")
        assert expected in message
    assert layer.num_batches_tracked == 0
    x = src.requires_grad_()
    (diff_src,) = torch.autograd.grad(layer(x), x, diff_dst.requires_grad_(), create_graph=True)
    kind, message = caught(diff_src.sum().backward)
    assert kind == "RuntimeError"
    assert "trying to differentiate twice" in message


def cut(tensor):
    """Free the last bytes of a tensor's memory."""
    tensor.untyped_storage().resize_(tensor.untyped_storage().nbytes() - 4)


@on_ranks(3)
def test_an_error_of_one_rank_is_one_on_the_others(rank):
    """Regression: the others waited until the timeout. The group remains usable."""
    src, diff_dst = part(rank, (1, 2, 1), *problem())
    layer, message = new_layer(), "SyncBatchNorm failed on ranks [1] of its group. Their errors"
    before = copy.deepcopy(layer.state_dict())
    x = src.clone().requires_grad_()
    gradient = diff_dst.clone()
    if rank == 1:
        cut(gradient)
    for call, argument, *kinds in (
        (layer, src.double(), "TypeError"),
        (layer, src[:, :2], "ValueError"),
        (layer, None, "AttributeError"),
        (new_layer()(x).backward, gradient, *REJECTED_BY_A_KERNEL),
    ):
        backward = argument is gradient
        kind, found = caught(call, argument if rank == 1 or backward else src)
        assert kind in kinds if rank == 1 else found.startswith(message), found
        assert ("storage was made too small (diff_dst)" in found) == (backward and rank == 1)
    assert x.grad is None
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())
    step(layer, src, diff_dst)
    assert layer.num_batches_tracked == 1


@on_ranks(2)
def test_views(rank):
    """Of negative numbers, for which a TypeError was raised, and expanded gradients."""

    def negative(t):
        view = torch.complex(torch.zeros_like(t), -t).conj().imag
        assert view.is_neg()
        return view

    layer, (src, _) = new_layer(), part(rank, (1, 3), *problem())
    found = []
    for change in torch.clone, negative:
        twin = copy.deepcopy(layer)
        twin.running_mean = change(twin.running_mean)
        twin.weight = nn.Parameter(change(twin.weight.detach()))
        x = change(src).requires_grad_()
        dst = twin(x)
        gradient = torch.arange(3.0).expand_as(dst)
        gradient = gradient.contiguous() if change is torch.clone else gradient
        leaves = x, twin.weight, twin.bias
        found.append((dst, twin.running_mean, *torch.autograd.grad(dst, leaves, gradient)))
    assert all(map(torch.equal, *found))


@on_ranks(2)
def test_transforms_and_export_are_errors(rank):
    """Regression: "Cannot access storage of TensorWrapper"."""
    layer, (src, _) = new_layer(), part(rank, (2, 2), *problem())
    reason = "SyncBatchNorm supports neither torch.func nor torch.export in training with several"
    for call in (
        torch.func.grad(lambda x: layer(x).sum()),
        torch.func.vmap(layer),
        lambda x: torch.export.export(layer, (x,), strict=False),
    ):
        kind, message = caught(call, src)
        assert (kind, message.startswith(reason)) == ("RuntimeError", True), message
    assert layer.num_batches_tracked == 0


@on_ranks(2)
def test_reports_count_layers_without_parameters(rank):
    """Regression: their gradients belonged to no layer."""
    model = nn.Sequential(*(new_layer(affine=False, track_running_stats=t) for t in (True, False)))
    with onedsl_torch.report(model) as summary:
        step(model, *part(rank, (2, 2), *problem()))
    once = {"onedsl with all processes": 1}
    keys = [(name, pass_) for name in "01" for pass_ in ("forward", "gradient")]
    assert summary.calls() == dict.fromkeys(keys, once)


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(5, 4, 1, bias=False), new_layer(4))


@on_ranks(2)
def test_torch_compile_breaks_its_graph_at_the_layer(rank):
    eager = small_model()
    twin = copy.deepcopy(eager)
    src, diff_dst = part(rank, (1, 3), *problem())
    results = [step(eager, src, diff_dst[:, :4])]
    results.append(step(torch.compile(twin, backend="aot_eager"), src, diff_dst[:, :4]))
    for a, b in zip(results[0].values(), results[1].values(), strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-5)
    kind, message = caught(torch.compile(twin, backend="aot_eager", fullgraph=True), src)
    assert kind == "Unsupported"
    assert "onedsl.torch._sync" in message


def autocast(rank, dtype):
    src, diff_dst = part(rank, (1, 3), *problem())
    with torch.autocast("cpu", dtype):
        return numpy(step(small_model(), src, diff_dst[:, :4].to(dtype)))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_autocast(ranks, dtype):
    got = join(ranks.run(2, autocast, DTYPES[dtype]))
    src, diff_dst = problem()
    for name, reference in exact_step(small_model(), src, diff_dst[:, :4]).items():
        assert testing.relative_l2(got[name], reference) < 8 * testing.TOLERANCES[dtype], name


@on_ranks(3, seconds=3)
def test_a_late_rank_is_an_error_on_the_others(rank):
    """They raise before it comes."""
    store = distributed.distributed_c10d._get_default_store()
    if rank == 0:
        store.wait(["error 1", "error 2"], datetime.timedelta(seconds=60))
        return
    kind, message = caught(new_layer(3), problem((2, 3, 2, 2))[0])
    assert kind in ("RuntimeError", "DistBackendError"), message
    store.set(f"error {rank}", "")


@pytest.mark.slow
def test_a_killed_rank_is_an_error_on_the_others():
    child = helpers.run_script("killed_ranks.py", "4", "0")
    assert child.stdout.startswith("4 runs, 0 hangs")


@modes
def test_plain_batch_norm_without_a_group(train):
    layer = new_layer().train(train)
    theirs = step(as_plain(layer), *problem())
    ours = step(layer, *problem())
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


# Conversion


def new_model():
    shared = nn.BatchNorm2d(4)
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 4, 1), shared),
        *(shared, nn.BatchNorm2d(4, affine=False, momentum=None).eval()),
        *(nn.SyncBatchNorm(4), onedsl_torch.SyncBatchNorm(4), nn.ReLU()),
    )


def test_conversion():
    model, group = new_model(), object()
    old = dict(model.named_modules(remove_duplicate=False))
    state = copy.deepcopy(model.state_dict())
    assert onedsl_torch.SyncBatchNorm.convert_sync_batchnorm(model, group) is model
    new = dict(model.named_modules(remove_duplicate=False))
    assert new == old, "whatever refers to a layer refers to the converted one"
    for name in "0.1", "1", "2", "3", "4":
        assert type(new[name]) is onedsl_torch.SyncBatchNorm
        assert new[name].process_group is group
        assert vars(new[name]).keys() == vars(nn.SyncBatchNorm(4)).keys()
    assert [new[n].training for n in ("1", "2")] == [True, False]
    assert (new["2"].affine, new["2"].momentum) == (False, None)
    after = model.state_dict()
    assert list(after) == list(state)
    assert all(torch.equal(after[name], state[name]) for name in state)


@dynamo
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # compiled with pruning
def test_conversion_keeps_all_attributes_of_a_layer():
    """Regression: hooks, qconfig and pruning were lost."""
    from torch.nn.utils import prune

    layer, seen = nn.BatchNorm2d(3), []
    layer.qconfig, layer.own = object(), object()
    layer.register_forward_pre_hook(lambda module, inputs: seen.append(module))
    layer.register_load_state_dict_pre_hook(lambda module, *_: seen.append(module))
    handle = layer.register_forward_hook(lambda module, inputs, output: output + 1)
    prune.l1_unstructured(layer, "weight", 1)
    layer.compile(backend="eager")
    src, state = torch.randn(4, 3, 2, 2), dict(layer.state_dict())
    kept = dict(vars(layer))
    assert onedsl_torch.SyncBatchNorm.convert_sync_batchnorm(layer) is layer
    assert type(layer) is onedsl_torch.SyncBatchNorm
    assert vars(layer) == kept | {"process_group": None}
    assert list(layer.state_dict()) == list(state)
    assert "weight_orig" in state
    layer.load_state_dict(state)
    output = layer(src)
    assert seen == [layer, layer]
    handle.remove()
    assert torch.equal(output, layer(src) + 1)
    assert int((layer.weight == 0).sum()) == 1


def test_numbers_of_converted_layers():
    """Regression: eps as a tensor was an error, of a layer that PyTorch's own accepts."""
    layer = nn.BatchNorm2d(3, eps=torch.tensor(0.25), momentum=np.float32(0.5))
    onedsl_torch.SyncBatchNorm.convert_sync_batchnorm(layer)
    new = onedsl_torch.SyncBatchNorm(3, layer.eps, torch.tensor(0.5))
    for each in layer, new:
        assert [(type(n), n) for n in (each.eps, each.momentum)] == [(float, 0.25), (float, 0.5)]


class Strict(nn.Module):
    """A model that rejects assignments, and whose property hides the name of a layer."""

    norm = property(lambda self: "hidden")

    def __init__(self):
        super().__init__()
        self._modules["norm"], self._modules["other"] = nn.BatchNorm2d(3), WithoutState(3)

    def __setattr__(self, name, value):
        if isinstance(value, nn.modules.batchnorm._BatchNorm):
            raise AttributeError(name)
        super().__setattr__(name, value)


class WithoutState(nn.BatchNorm2d):
    """A layer that is saved in its own way, and rejects assignments."""

    def __getstate__(self):
        return ("only", "for", "copies")

    def __setattr__(self, name, value):
        if name in ("__class__", "process_group"):
            raise AttributeError(name)
        super().__setattr__(name, value)


def test_conversion_calls_no_method_of_a_model_or_layer():
    """Regression: a model remained half converted, or a layer lost its attributes."""
    model = Strict()
    layers = dict(model._modules)
    onedsl_torch.SyncBatchNorm.convert_sync_batchnorm(model)
    assert model._modules == layers
    for layer in layers.values():
        assert type(layer) is onedsl_torch.SyncBatchNorm
        layer(torch.randn(4, 3, 2, 2))


def parametrized():
    layer = nn.BatchNorm2d(3)
    nn.utils.parametrize.register_parametrization(layer, "weight", nn.Softplus())
    return layer


class Slots(nn.BatchNorm2d):
    __slots__ = ("own",)


def patched():
    layer = nn.BatchNorm2d(3)
    layer.forward = lambda x: x
    return layer


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (parametrized, r"must not be parametrized, got ParametrizedBatchNorm2d at '1'"),
        (nn.LazyBatchNorm2d, r"must be initialized, got LazyBatchNorm2d at '1'"),
        (lambda: Slots(3), r"must not have __slots__, got Slots at '1'"),
        (patched, r"must have the forward method .* got BatchNorm2d at '1'"),
        (
            # PyTorch drops the ReLU.
            lambda: nn.Sequential(onedsl_torch.BatchNormAct2d(3, activation="relu")),
            r"must have the forward method .* got BatchNormAct2d at '1\.0'",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
def test_layers_that_cannot_be_converted(make, message):
    """Regression: the next call failed without a weight, or a layer had no channels."""
    model = nn.Sequential(nn.BatchNorm2d(3), make())
    with pytest.raises(TypeError, match=message):
        onedsl_torch.SyncBatchNorm.convert_sync_batchnorm(model)
    assert type(model[0]) is nn.BatchNorm2d, "nothing is changed"
    with pytest.raises(TypeError, match=r"module must be a torch.nn.Module, got list"):
        onedsl_torch.SyncBatchNorm.convert_sync_batchnorm([model])


def test_layers_have_the_signature_and_state_of_pytorch():
    ours, theirs = onedsl_torch.SyncBatchNorm, nn.SyncBatchNorm
    parameters = [list(inspect.signature(kind).parameters) for kind in (ours, theirs)]
    # With every supported PyTorch, the last parameter is `bias`.
    assert parameters[0] == parameters[1] + ([] if WITHOUT_BIAS else ["bias"])
    arguments = (3, 1e-3, None, True, True, "group", "cpu", torch.float64)
    for kwargs in {}, *WITHOUT_BIAS:
        a, b = ours(*arguments, **kwargs), theirs(*arguments, **kwargs)
        assert vars(a).keys() == vars(b).keys()
        assert repr(a) == repr(b)
        assert list(a.state_dict()) == list(b.state_dict())
        a.load_state_dict(b.state_dict())
        b.load_state_dict(a.state_dict())
