"""convert and revert: models keep their parameters, state and training results."""

from __future__ import annotations

import copy
import inspect
import io

import pytest
from torch_helpers import OURS, WITHOUT_BIAS, SmallModel, dynamo, nn, onedsl_torch, torch


@pytest.fixture
def model():
    torch.manual_seed(0)
    return SmallModel()


def test_convert(model):
    parameters = dict(model.named_parameters())
    layer = model.stem[1]
    model.branch.eval()
    calls = []
    layer.register_forward_hook(lambda *_: calls.append(1))
    assert onedsl_torch.convert(model) is model
    kinds = [type(m) for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    assert kinds == [OURS[2], OURS[2], OURS[1]]
    assert model.stem[1] is layer
    assert {n: id(p) for n, p in model.named_parameters()} == {
        n: id(p) for n, p in parameters.items()
    }
    assert not model.branch["a"][1].training
    model(torch.randn(2, 3, 4, 4))
    assert calls == [1]
    onedsl_torch.convert(model)
    assert repr(model.stem[1]).startswith("BatchNorm2d(8, eps=1e-05, momentum=0.1")


def test_revert(model):
    ours = onedsl_torch.convert(copy.deepcopy(model))
    assert onedsl_torch.revert(ours) is ours
    assert [type(m) for m in ours.modules()] == [type(m) for m in model.modules()]
    torch.fx.symbolic_trace(ours)


def test_convert_changes_supported_classes_only():
    assert type(onedsl_torch.convert(nn.BatchNorm3d(3))) is OURS[3]

    class Subclass(nn.BatchNorm2d):
        pass

    for layer in Subclass(3), nn.LazyBatchNorm2d(), nn.SyncBatchNorm(3), nn.GroupNorm(1, 3):
        assert type(onedsl_torch.convert(layer)) is type(layer)


def test_parametrized_layers_are_converted_and_reverted(model):
    layer = model.stem[1]
    nn.utils.parametrize.register_parametrization(layer, "weight", nn.Softplus())
    twin = copy.deepcopy(model)  # shares the class that parametrize made
    x = torch.randn(4, 3, 6, 6)
    expected = model(x)
    onedsl_torch.convert(model)
    assert isinstance(layer, OURS[2])
    assert not isinstance(twin.stem[1], OURS[2])
    model(x).sum().backward()
    assert layer.parametrizations.weight.original.grad is not None
    assert onedsl_torch.report(model)[0][:3] == ("stem.1", "ParametrizedBatchNorm2d", "converted")
    onedsl_torch.revert(model)
    assert not isinstance(layer, OURS[2])
    assert torch.equal(model(x), expected)


def test_revert_layers_that_were_parametrized_after_convert(model):
    onedsl_torch.convert(model)
    nn.utils.parametrize.register_parametrization(model.stem[1], "weight", nn.Softplus())
    onedsl_torch.revert(model)
    assert not isinstance(model.stem[1], OURS[2])
    nn.utils.parametrize.remove_parametrizations(model.stem[1], "weight")
    model(torch.randn(4, 3, 6, 6)).sum().backward()


@pytest.mark.parametrize("change", [onedsl_torch.convert, onedsl_torch.fuse])
def test_traces_by_fx(model, change):
    change(model)
    graph = torch.fx.symbolic_trace(model)
    targets = [node.target for node in graph.graph.nodes if node.op == "call_module"]
    assert {"stem.1", "branch.a.1", "head.1"} <= set(targets)
    x = torch.randn(4, 3, 6, 6)
    graph(x).sum().backward()
    assert torch.equal(graph.eval()(x), model.eval()(x))


@dynamo
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("change", [onedsl_torch.convert, onedsl_torch.fuse])
def test_exported_programs_contain_only_ops_of_pytorch(model, change):
    program = torch.export.export(change(model), (torch.randn(4, 3, 6, 6),))
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert sum("aten.batch_norm" in target for target in targets) == 3
    assert not any("onedsl" in target for target in targets)


def test_skipped_layers_are_logged(model, caplog):
    model.tail = nn.Sequential(nn.LazyBatchNorm1d(), nn.SyncBatchNorm(3))
    with caplog.at_level("INFO", "onedsl.torch"):
        onedsl_torch.convert(model)
    assert [record.message for record in caplog.records] == [
        "converted 3 batch-norm layers, skipped 2",
        "skipped tail.0 (LazyBatchNorm1d): it is lazy and was not initialized by an input",
        "skipped tail.1 (SyncBatchNorm): it is for GPUs; pass process_group to convert it",
    ]


def test_state_dict_round_trip(model):
    theirs = copy.deepcopy(model)
    ours = onedsl_torch.convert(copy.deepcopy(model))
    for m in theirs, ours:
        m(torch.ones(2, 3, 4, 4).normal_(generator=torch.Generator().manual_seed(0)))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for source, target in ((ours, SmallModel()), (theirs, onedsl_torch.convert(SmallModel()))):
        file = io.BytesIO()
        torch.save(source.state_dict(), file)
        file.seek(0)
        target.load_state_dict(torch.load(file, weights_only=True))
        for a, b in zip(target.state_dict().values(), theirs.state_dict().values(), strict=True):
            assert torch.equal(a, b)


def test_whole_models_are_saved_and_copied(model):
    ours = onedsl_torch.convert(model)
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    for other in (torch.load(file, weights_only=False), copy.deepcopy(ours)):
        assert type(other.stem[1]) is OURS[2]


@pytest.mark.parametrize("memory", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_losses_are_close_to_those_of_pytorch(model, memory, dtype):
    theirs, ours = model, onedsl_torch.convert(copy.deepcopy(model))
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 3, 6, 6, generator=generator)
    y = torch.randint(4, (64,), generator=generator)
    losses = []
    for m in theirs, ours:
        if memory == "channels_last":
            m.to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
        losses.append([])
        for _ in range(25):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16"):
                loss = nn.functional.cross_entropy(m(x), y)
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[0][-1] < 0.8 * losses[0][0]
    limit = 1e-3 if dtype == "f32" else 0.05
    assert max(abs(a - b) for a, b in zip(*losses, strict=True)) < limit


def new_mixed_model():
    layers = [nn.SyncBatchNorm(3), nn.BatchNorm1d(3), OURS[2](3), onedsl_torch.SyncBatchNorm(3)]
    return nn.Sequential(*layers, nn.LazyBatchNorm1d(), onedsl_torch.BatchNormReLU2d(3))


def test_convert_with_a_group_and_back():
    model = new_mixed_model()
    group = object()
    layers = list(model)
    assert onedsl_torch.convert(model, process_group=group) is model
    assert list(model) == layers
    assert [type(layer) for layer in model[:4]] == [onedsl_torch.SyncBatchNorm] * 4
    assert all(layer.process_group is group for layer in model[:4])
    assert onedsl_torch.convert(model, process_group=None)[0].process_group is None
    lines = [(line.kind, line.state, line.convert) for line in onedsl_torch.report(model)]
    assert lines == [
        *[("SyncBatchNorm", "converted", "")] * 4,
        (
            "LazyBatchNorm1d",
            "PyTorch's",
            "it is lazy and was not initialized by an input",
        ),
        ("BatchNormReLU2d", "fused", "it is fused"),
    ]
    onedsl_torch.convert(model)  # changes nothing: these layers have onedsl's gradient
    assert [type(layer) for layer in model[:4]] == [onedsl_torch.SyncBatchNorm] * 4
    onedsl_torch.revert(model)
    kinds = [nn.SyncBatchNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm]
    assert [type(layer) for layer in model[:4]] == kinds
    assert model[0].process_group is None
    assert vars(model[1]).keys() == vars(nn.BatchNorm1d(3)).keys()


def test_convert_sync_batchnorm(model):
    assert onedsl_torch.SyncBatchNorm.convert_sync_batchnorm(model, "group") is model
    assert type(model.stem[1]) is onedsl_torch.SyncBatchNorm
    assert model.head[1].process_group == "group"


def test_synchronized_layers_have_the_signature_and_state_of_pytorch():
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


def test_synchronized_layers_are_saved_copied_traced_and_parametrized(model):
    ours = onedsl_torch.convert(model, process_group=None)
    x = torch.randn(4, 3, 6, 6)
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    graph = torch.fx.symbolic_trace(ours)
    for other in (torch.load(file, weights_only=False), copy.deepcopy(ours), graph):
        assert torch.equal(other.eval()(x), ours.eval()(x))
    assert b"onedsl.torch._sync" not in file.getvalue()
    assert type(onedsl_torch.revert(copy.deepcopy(ours)).head[1]) is nn.BatchNorm1d
    nn.utils.parametrize.register_parametrization(ours.stem[1], "weight", nn.Softplus())
    expected = ours(x)
    assert onedsl_torch.report(ours)[0][:3] == ("stem.1", "ParametrizedSyncBatchNorm", "converted")
    onedsl_torch.revert(ours)
    assert isinstance(ours.stem[1], nn.BatchNorm2d)
    assert torch.equal(ours(x), expected)
    onedsl_torch.convert(ours, process_group=None)
    assert isinstance(ours.stem[1], onedsl_torch.SyncBatchNorm)
