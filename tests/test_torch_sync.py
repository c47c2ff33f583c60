"""SyncBatchNorm on several processes against float64 batch norm of the whole batch."""

from __future__ import annotations

import copy
import inspect
import io

import helpers
import numpy as np
import pytest
import sync_ranks
from ranks import Ranks
from torch_helpers import WITHOUT_BIAS, modes, nn, onedsl_torch, torch

from onedsl import testing

# Batch size of each rank: one process, uneven, one empty, even.
SIZES = [(4,), (1, 4), (2, 0, 3), (1, 1, 1, 1)]


@pytest.fixture(scope="module")
def ranks():
    with Ranks() as pool:
        yield pool


def exact_step(layer, src, diff_dst):
    """Compute a step on the whole batch with PyTorch's batch norm in float64."""
    twin = nn.BatchNorm2d(
        layer.num_features,
        layer.eps,
        layer.momentum,
        layer.affine,
        layer.track_running_stats,
        **({"bias": False} if layer.affine and layer.bias is None else {}),
    ).double()
    twin.load_state_dict(layer.state_dict())
    for ours, theirs in zip(layer.parameters(), twin.parameters(), strict=True):
        theirs.requires_grad_(ours.requires_grad)
    return twin, sync_ranks.numpy(sync_ranks.step(twin, src.double(), diff_dst.double()))


def join(results):
    """Join the ranks' results: concatenate tensors, add gradients of parameters."""
    joined = dict(results[0])
    for name, first in results[0].items():
        if name in ("dst", "diff_src"):
            joined[name] = np.concatenate([r[name] for r in results])
        elif name.startswith("diff_") and first is not None:
            joined[name] = np.sum([r[name] for r in results], axis=0)
    return joined


def check(results, expected, dtype="f32", state="f32"):
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


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(
    ("dtype", "memory"),
    [
        ("f32", "contiguous"),
        ("f32", "channels_last"),
        ("bf16", "channels_last"),
        ("f16", "contiguous"),
    ],
)
def test_results_are_those_of_the_whole_batch(ranks, sizes, dtype, memory):
    shape = (sum(sizes), 19, 5, 6)
    results = ranks.run(len(sizes), sync_ranks.layer, sizes, shape, dtype, memory)
    _, expected = exact_step(sync_ranks.new_layer(19), *sync_ranks.problem(shape, dtype))
    check(results, expected, dtype)


OPTIONS = {
    "momentum None": ({"momentum": None}, None),
    "no affine": ({"affine": False}, None),
    **({"no bias": (WITHOUT_BIAS[0], None)} if WITHOUT_BIAS else {}),
    "no running statistics": ({"track_running_stats": False}, None),
    "frozen weight": ({}, "weight"),
    "frozen bias": ({}, "bias"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_layer_options_in_training_and_evaluation(ranks, name):
    results = ranks.run(2, sync_ranks.kind, *OPTIONS[name])
    _, expected = exact_step(sync_ranks.new_kind(*OPTIONS[name]), *sync_ranks.problem((4, 5, 3, 3)))
    check(results, expected)


def test_a_model_in_bfloat16(ranks):
    results = ranks.run(2, sync_ranks.bfloat16)
    layer = sync_ranks.new_layer(5).bfloat16()
    _, expected = exact_step(layer, *sync_ranks.problem((4, 5, 3, 3), "bf16"))
    check(results, expected, "bf16", "bf16")


def test_every_rank_computes_the_same_bits(ranks):
    first, *others = ranks.run(3, sync_ranks.same_part_everywhere)
    for other in others:
        for name, value in first.items():
            assert np.array_equal(other[name], value), name


def test_empty_batches_on_all_ranks(ranks):
    for result in ranks.run(2, sync_ranks.all_empty):
        assert result["num_batches_tracked"] == 1
        assert not result["diff_weight"].any()
        assert not result["diff_bias"].any()


def test_one_value_per_channel_raises_on_every_rank(ranks):
    for raised in ranks.run(3, sync_ranks.one_value):
        assert raised == (
            "ValueError",
            "the inputs of all processes together must have more than 1 value per channel when "
            "training, got 1",
        )


def test_different_channels_raise_on_every_rank(ranks):
    """Regression: gloo aborted the process."""
    for raised in ranks.run(3, sync_ranks.different_channels):
        assert raised == (
            "ValueError",
            "num_features must be the same on all processes that call a layer together, got "
            "[3, 4, 5]",
        )


def test_channels_are_compared_in_every_group(ranks):
    zero, one, two = ranks.run(3, sync_ranks.regrouped)
    assert one == [None]
    assert zero[0] is None
    for kind, message in zero[1], two[0]:
        assert kind == "ValueError"
        assert message.endswith("got [3, 4]")


def test_infinity_in_the_batch_of_one_rank_gives_nan_on_all(ranks):
    for result in ranks.run(2, sync_ranks.infinite):
        for name in "dst", "diff_src":
            assert np.isnan(result[name][:, 1]).all()
            assert np.isfinite(result[name][:, [0, 2, 3, 4]]).all()


def test_one_exchange_per_pass_and_none_in_evaluation(ranks):
    count = 2 * 5 + 1
    for step, later in ranks.run(2, sync_ranks.exchanges):
        assert step == [
            ("all_gather", 8),  # the first call compares the numbers of channels
            ("all_gather", 8 * count),
            ("all_reduce", 8 * count),
        ]
        assert later == [("all_gather", 8 * count)] * 2


def test_groups_have_their_own_statistics(ranks):
    results = ranks.run(4, sync_ranks.groups)
    tensors = sync_ranks.problem((8, 5, 3, 3))
    for half, rows in ((slice(0, 2), slice(0, 3)), (slice(2, 4), slice(3, 8))):
        _, expected = exact_step(sync_ranks.new_layer(5), *(t[rows] for t in tensors))
        check(results[half], expected)


def test_invalid_inputs(ranks):
    for raised in ranks.run(2, sync_ranks.invalid_inputs):
        kinds, messages = zip(*raised, strict=True)
        assert kinds == ("TypeError", *["ValueError"] * 4, "RuntimeError")
        for got, expected in zip(
            messages,
            (
                "input must be float32, bfloat16 or float16, got torch.float64",
                "input must be a strided CPU tensor, got torch.strided on meta",
                "input must have 3 channels, got 2",
                "input must have shape (N, C, ...), got (2,)",
                "input must be a strided CPU tensor, got torch.sparse_coo on cpu",
                "trying to differentiate twice",
            ),
            strict=True,
        ):
            assert expected in got


def test_torch_compile_breaks_its_graph_at_the_layer(ranks):
    for kind, message in ranks.run(2, sync_ranks.compiled):
        assert kind == "Unsupported"
        assert "onedsl.torch._sync" in message


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_autocast(ranks, dtype):
    results = ranks.run(2, sync_ranks.autocast, dtype)
    src, diff_dst = sync_ranks.problem((4, 5, 3, 3))
    model = sync_ranks.small_model().double()
    model[1].__class__ = nn.BatchNorm2d
    expected = sync_ranks.numpy(sync_ranks.step(model, src.double(), diff_dst[:, :4].double()))
    got = join(results)
    for name, reference in expected.items():
        assert testing.relative_l2(got[name], reference) < 8 * testing.TOLERANCES[dtype], name


def test_a_late_rank_is_an_error_on_the_others(ranks):
    _, *others = ranks.run(3, sync_ranks.late, 3, seconds=1)
    for (kind, message), seconds in others:
        assert kind in ("RuntimeError", "DistBackendError"), message
        assert seconds < 2.5


@pytest.mark.slow
def test_a_killed_rank_is_an_error_on_the_others():
    child = helpers.run_script("killed_ranks.py", "4", "0")
    assert child.returncode == 0, child.stdout + child.stderr
    assert child.stdout.startswith("4 runs, 0 hangs")


def relative_distance(state, other, begin):
    """Return the distance of two trained networks, relative to the distance from the start."""
    names = [name for name in other if "num_batches" not in name]
    square = [sum(((a[n] - other[n]) ** 2).sum() for n in names) for a in (state, begin)]
    return (square[0] / square[1]) ** 0.5


# After 20 steps. Rounding to f32 gives 5e-7 for one process against float64, and for several
# processes against one.
BOUND = 3e-6


@pytest.mark.parametrize("world", [1, 3])
def test_training_equals_one_process_on_the_whole_batch(ranks, world):
    batch = 24
    begin = sync_ranks.numpy(sync_ranks.network().state_dict())
    alone = sync_ranks.train(sync_ranks.network(), batch)
    exact = sync_ranks.train(sync_ranks.network().double(), batch)
    for state in ranks.run(world, sync_ranks.train_together, batch, True):
        assert relative_distance(state, alone, begin) < BOUND
        assert relative_distance(state, exact, begin) < BOUND
    if world > 1:  # statistics of each rank's own batch lead to another network
        for state in ranks.run(world, sync_ranks.train_together, batch, False):
            assert relative_distance(state, alone, begin) > 0.1


@modes
def test_plain_batch_norm_without_a_group(train):
    layer = sync_ranks.new_layer(5).train(train)
    plain = nn.BatchNorm2d(5).train(train)
    plain.load_state_dict(layer.state_dict())
    tensors = sync_ranks.problem((4, 5, 3, 3))
    ours, theirs = sync_ranks.step(layer, *tensors), sync_ranks.step(plain, *tensors)
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
    assert new.keys() == old.keys()
    for name in "0.1", "1", "2", "3", "4":
        assert type(new[name]) is onedsl_torch.SyncBatchNorm
        assert new[name].process_group is group
        assert vars(new[name]).keys() == vars(nn.SyncBatchNorm(4)).keys()
        for kind in "parameters", "buffers":
            pairs = (dict(getattr(m[name], f"named_{kind}")()) for m in (old, new))
            before, after = pairs
            assert before.keys() == after.keys()
            assert all(before[key] is after[key] for key in before)
    assert new["0.1"] is new["1"], "a shared layer remains shared"
    assert [new[n].training for n in ("1", "2")] == [True, False]
    assert (new["2"].affine, new["2"].momentum) == (False, None)
    assert new["0.0"] is old["0.0"]
    after = model.state_dict()
    assert list(after) == list(state)
    assert all(torch.equal(after[name], state[name]) for name in state)


def test_conversion_of_a_layer():
    layer = nn.BatchNorm1d(3)
    converted = onedsl_torch.SyncBatchNorm.convert_sync_batchnorm(layer)
    assert type(converted) is onedsl_torch.SyncBatchNorm
    assert converted.weight is layer.weight


def test_layers_with_a_forward_method_of_their_own_are_not_converted():
    """PyTorch's function drops their activation."""
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Sequential(onedsl_torch.BatchNormReLU2d(3)))
    with pytest.raises(TypeError, match=r"got BatchNormReLU2d at '1\.0'"):
        onedsl_torch.SyncBatchNorm.convert_sync_batchnorm(model)
    assert type(model[0]) is nn.BatchNorm2d, "nothing is changed"


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


def test_layers_are_saved_and_copied():
    ours = onedsl_torch.SyncBatchNorm.convert_sync_batchnorm(new_model())
    x = torch.randn(4, 3, 6, 6)
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    for other in torch.load(file, weights_only=False), copy.deepcopy(ours):
        assert torch.equal(other.eval()(x), ours.eval()(x))
    assert b"onedsl.torch._sync" not in file.getvalue()
