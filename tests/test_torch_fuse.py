"""fuse, revert and report: a fused model computes what the unfused one does."""

from __future__ import annotations

import collections
import copy
import io
import logging
import pickle
import threading
import weakref

import numpy as np
import pytest
from random_modules import Cube, RandomModule
from torch_helpers import dynamo, nn, onedsl_torch, torch

from onedsl.bench import networks  # it needs PyTorch, as torch_helpers does
from onedsl.torch import _deferred, _deferred_autograd, _deferred_state, _deferred_tensor

F = nn.functional
MIN_ELEMENTS, MIN_ELEMENTS_OF_SUM = _deferred.MIN_ELEMENTS, _deferred.MIN_ELEMENTS_OF_SUM


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Fuse small tensors, too."""
    monkeypatch.setattr(_deferred, "MIN_ELEMENTS", 0)
    monkeypatch.setattr(_deferred, "MIN_ELEMENTS_OF_SUM", 0)


@pytest.fixture
def kinds(monkeypatch):
    """Count the kernels: ReLU, addition and ReLU, plain results, and fused backward passes."""
    counts = collections.Counter()
    state_class = _deferred_state.State
    relu, plain = state_class.relu, state_class.plain
    gradients = _deferred_autograd._gradients

    def counted_relu(state, clip):
        counts["add " * (state.residual is not None) + "relu"] += 1
        return relu(state, clip)

    def counted_plain(state):
        if state.values is None:
            counts["add " * (state.residual is not None) + "plain"] += 1
        return plain(state)

    def counted_backward(*arguments):
        counts["plain backward"] += 1
        return gradients(*arguments)

    monkeypatch.setattr(state_class, "relu", counted_relu)
    monkeypatch.setattr(state_class, "plain", counted_plain)
    monkeypatch.setattr(_deferred_autograd, "_gradients", counted_backward)
    return counts


# Random modules.


def run(model, seed):
    """Train twice and evaluate; return everything that can be observed."""
    model.attach_hooks()
    observed = []
    generator = torch.Generator().manual_seed(seed)
    for step in range(4):
        model.train(step < 3)
        x = torch.randn(3, 4, 5, 5, generator=generator).requires_grad_(step == 1)
        error, output = None, None
        try:
            output = model(x)
            output.square().mean().backward()
        except Exception as caught:
            error = caught
        observed += [type(error).__name__, None if output is None else output.detach()]
        gradients = [x.grad, *(p.grad for p in model.parameters()), *(t.grad for t in model.kept)]
        observed.append(Gradients(None if g is None else g.clone() for g in gradients))
        observed += [b.detach().clone() for b in model.buffers()]
        observed += [model.count, None if model.last is None else model.last.detach()]
        observed += model.seen
        model.scale += 1
        model.seen, model.kept = [], []
        model.zero_grad()
    model.last = None
    model.__dict__.update({n: v for n, v in vars(model).items() if n != "held"})
    return observed


class Gradients(list):
    """Gradients of one step. Those that are zero without rounding are noise of the others' size."""


def find_difference(plain, fused, limit, scale=1e-2):
    if len(plain) != len(fused):
        return f"{len(plain)} observations, {len(fused)} when fused"
    for i, (expected, got) in enumerate(zip(plain, fused, strict=True)):
        a, b = expected, got
        if (type(a), type(b)) == (float, float):
            a, b = torch.tensor(a), torch.tensor(b)
        if isinstance(a, Gradients) and isinstance(b, Gradients):
            largest = max((float(g.norm()) for g in a if g is not None), default=0)
            if (inner := find_difference(a, b, limit, largest + 1e-2)) is not None:
                return f"gradients: {inner}"
        elif isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            if a.dtype != b.dtype or a.shape != b.shape or a.stride() != b.stride():
                return f"observation {i}: {a.dtype}, {a.stride()} and {b.dtype}, {b.stride()}"
            a, b = a.double(), b.double()
            if not torch.equal(a.isnan(), b.isnan()):
                return f"observation {i}: NaN"
            error = float((a - b).nan_to_num(0, 0, 0).norm())
            if error > limit * (float(a.nan_to_num(0, 0, 0).norm()) + scale):
                return f"observation {i}: off by {error}, {a.norm()}"
        elif isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor) or a != b:
            return f"observation {i}: {a!r} and {b!r}"
    return None


def check_random_module(seed):
    difference = None
    # At the edge of a ReLU, rounding changes the gradient: what is wrong is so for all inputs.
    for attempt in range(3):
        plain, fused = RandomModule(seed), onedsl_torch.fuse(RandomModule(seed))
        expected, got = run(plain, 10 * seed + attempt), run(fused, 10 * seed + attempt)
        autocast = any(name == "autocast" for _, name, _ in plain.program)
        difference = find_difference(expected, got, 3e-2 if autocast else 1e-3)
        if difference is None:
            break
    assert difference is None, f"seed {seed}: {difference}\n{plain.program} {plain.hooked}"
    onedsl_torch.revert(fused)
    assert [type(m) for m in fused.modules()] == [type(m) for m in plain.modules()]
    return expected


def check_random_modules(seeds, kinds):
    for seed in seeds:
        observed = check_random_module(seed)
        kinds["modules"] += 1
        kinds["error raised by both"] += any(
            o == "RuntimeError" for o in observed if isinstance(o, str)
        )
    print(dict(kinds))


def test_random_modules(kinds):
    check_random_modules(range(60), kinds)
    assert all(kinds[kind] for kind in ("relu", "add relu", "plain", "add plain", "plain backward"))


@pytest.mark.slow
def test_a_thousand_random_modules(kinds):
    check_random_modules(range(60, 1060), kinds)


def test_only_large_tensors_are_deferred_and_only_large_sums_fused(kinds, monkeypatch):
    large = f"{MIN_ELEMENTS:,} elements ({MIN_ELEMENTS_OF_SUM:,} where an addition follows)"
    assert large in " ".join(onedsl_torch.fuse.__doc__.split())
    layer = onedsl_torch.fuse(nn.BatchNorm2d(3))

    def relu_of_sum(elements, elements_of_sum):
        monkeypatch.setattr(_deferred, "MIN_ELEMENTS", elements)
        monkeypatch.setattr(_deferred, "MIN_ELEMENTS_OF_SUM", elements_of_sum)
        kinds.clear()
        x = torch.randn(2, 3, 5, 5, requires_grad=True)  # 150 elements
        F.relu(layer(x * 1) + x * 2)
        return dict(kinds)

    assert relu_of_sum(150, 150) == {"add relu": 1}
    assert relu_of_sum(150, 151) == {"plain": 1}
    assert relu_of_sum(151, 150) == {}


# What earlier versions computed wrongly. Each way through the block is a forward method.


class Block(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1))
        self.conv, self.norm, self.other = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.relu, self.relu6 = nn.ReLU(inplace=True), nn.ReLU6(inplace=True)
        self.tail = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Identity())
        self.scale, self.calls, self.last, self.way = 2.0, 0, None, way

    def forward(self, x):
        return self.way(self, x + self.shift)


def with_no_grad(m, x):
    with torch.no_grad():
        return F.relu(m.norm(m.conv(x)))


def consumed_without_gradients(m, x):
    y = m.norm(m.conv(x))
    with torch.no_grad():
        z = F.relu(y)
    return y * z


def with_autocast(m, x):
    with torch.autocast("cpu", torch.bfloat16):
        y = m.norm(m.conv(x))
    return F.relu(y) + 1


def asks_for_gradients(m, x):
    y = F.relu(m.norm(m.conv(x)))
    return y * 2 if torch.is_grad_enabled() else y


def input_overwritten(m, x):
    h = m.conv(x)
    y = m.norm(h)
    h.relu_()
    y += h
    return F.relu(y)


def input_overwritten_unseen(m, x):
    h = m.conv(x)
    y = m.norm(h)
    h.data.zero_()
    return F.relu(y)


def residual_overwritten(m, x):
    y = m.norm(m.conv(x))
    r = m.conv(x)
    y += r
    r.relu_()
    return F.relu(y)


def residual(m, x):
    y = m.norm(m.conv(x))
    m.calls += 1
    y += x
    m.last = y
    return m.relu(y)


def iterates(m, x):
    for layer in (m.conv, m.norm, m.relu):
        x = layer(x)
        if isinstance(layer, nn.ReLU):
            assert layer.inplace
            x = x * 2
    return x


# name: forward method, fused forward passes (without the addition, with it)
WAYS = {
    "layer": (lambda m, x: m.relu(m.norm(m.conv(x))), (1, 0)),
    "function": (lambda m, x: torch.relu(m.norm(m.conv(x))), (1, 0)),
    "method": (lambda m, x: m.norm(m.conv(x)).relu(), (1, 0)),
    "method in place": (lambda m, x: m.norm(m.conv(x)).relu_(), (1, 0)),
    "ReLU6": (lambda m, x: m.relu6(m.norm(m.conv(x))), (1, 0)),
    "relu6": (lambda m, x: F.relu6(m.norm(m.conv(x))), (1, 0)),
    "behind a Sequential": (lambda m, x: m.relu(m.tail(x)), (1, 0)),
    "residual": (residual, (0, 1)),
    "sum": (lambda m, x: m.relu(m.norm(m.conv(x)) + x), (0, 1)),
    "sum on the right": (lambda m, x: m.relu(x + m.norm(m.conv(x))), (0, 1)),
    "two sums": (lambda m, x: F.relu(torch.add(m.norm(m.conv(x)), m.other(m.conv(x)))), (0, 1)),
    "sum with itself": (lambda m, x: m.relu((y := m.norm(m.conv(x))) + y), (0, 0)),
    "sum with a number": (lambda m, x: m.relu(m.norm(m.conv(x)) + 1), (0, 0)),
    "weighted sum": (lambda m, x: m.relu(torch.add(m.norm(m.conv(x)), x, alpha=2)), (0, 0)),
    "broadcast sum": (lambda m, x: m.relu(m.norm(m.conv(x)) + x[:1]), (0, 0)),
    "overwritten": (lambda m, x: m.relu(x.clone().add_(m.norm(m.conv(x)))), (0, 0)),
    "two users": (lambda m, x: torch.relu(y := m.norm(m.conv(x))) + y, (1, 0)),
    "two calls": (lambda m, x: m.relu(m.norm(m.conv(x))) + m.relu(m.norm(2 * x)), (2, 0)),
    "no ReLU": (lambda m, x: m.norm(m.conv(x)), (0, 0)),
    "no_grad": (with_no_grad, (0, 0)),
    "consumed without gradients": (consumed_without_gradients, (0, 0)),
    "autocast": (with_autocast, (1, 0)),
    "asks for gradients": (asks_for_gradients, (1, 0)),
    "attribute": (lambda m, x: F.relu(m.norm(m.conv(x))) * m.scale, (1, 0)),
    "in training only": (
        lambda m, x: m.relu(m.norm(m.conv(x))) if m.training else m.norm(m.conv(x)),
        (1, 0),
    ),
    "by values": (lambda m, x: m.relu(m.norm(m.conv(x))) if x.sum() > 0 else x, (1, 0)),
    "iterates": (iterates, (1, 0)),
    "input overwritten": (input_overwritten, (0, 1)),
    "input overwritten unseen": (input_overwritten_unseen, (1, 0)),
    "residual overwritten": (residual_overwritten, (0, 1)),
}


@pytest.fixture
def x():
    return torch.rand(4, 4, 5, 5, generator=torch.Generator().manual_seed(0))


def outcome(model, x):
    """The outputs and gradients of two training steps and an evaluation, and the state."""
    results = []
    for scale in 2.0, 3.0:
        model.scale = scale
        model.zero_grad()
        output = model(x)
        results.append(output.detach())
        try:
            output.float().square().mean().backward()
        except RuntimeError as error:
            results.append(str("modified by an inplace" in str(error)))
        results.append(Gradients(p.grad for p in model.parameters()))
    results += [b.clone() for b in model.buffers()]
    model.last = None
    return [*results, copy.deepcopy(model).eval()(x).detach(), getattr(model, "calls", 0)]


def check_same(plain, fused, x, limit=1e-3):
    difference = find_difference(outcome(plain, x), outcome(fused, x), limit)
    assert difference is None


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("converted", [False, True])
def test_ways_through_a_block(name, converted, x, kinds):
    way, (relu, add_relu) = WAYS[name]
    torch.manual_seed(0)
    plain = Block(way)
    fused = onedsl_torch.convert(copy.deepcopy(plain)) if converted else copy.deepcopy(plain)
    keys = list(fused.state_dict())
    assert onedsl_torch.fuse(fused) is fused
    assert type(fused).forward is Block.forward
    assert list(fused.state_dict()) == keys
    output = fused(x)
    assert (kinds["relu"], kinds["add relu"]) == (relu, add_relu)
    assert type(output) is torch.Tensor or name in ("no ReLU", "two users")
    fused.load_state_dict(plain.state_dict())
    fused.calls = 0
    if name == "input overwritten unseen":  # PyTorch's gradients are wrong
        assert torch.allclose(plain(x), fused(x), atol=1e-6)
        return
    check_same(plain, fused, x, 2e-2 if name == "autocast" else 1e-3)
    if relu + add_relu == 1 and name not in ("two sums", "two users", "input overwritten"):
        assert not kinds["plain backward"]


def test_forward_methods_of_instances_are_kept(x):
    plain = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
    plain[2].forward = lambda t: 5 * t
    check_same(plain, onedsl_torch.fuse(copy.deepcopy(plain)), x)
    plain[1].forward = lambda t: t + 1
    check_same(plain, onedsl_torch.fuse(copy.deepcopy(plain)), x)


def test_what_is_between_the_layers_of_a_sequential(x):
    plain = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
    fused = onedsl_torch.fuse(copy.deepcopy(plain))
    outputs = [m[1](m[0](x)) for m in (plain, fused)]
    assert torch.allclose(*outputs, atol=1e-6)


def test_fuse_and_report_run_nothing_of_a_model(x):
    class Counting(Block):
        def forward(self, x):
            self.calls += 1
            self.last = self.norm(x)
            return self.relu(self.last)

    model = Counting(None)
    before = dict(vars(model))
    modules = list(model.modules())
    onedsl_torch.report(onedsl_torch.fuse(model))
    assert vars(model) == before
    assert list(model.modules()) == modules
    model(x)
    assert model.calls == 1


def test_revert():
    model = onedsl_torch.fuse(Block(residual))
    onedsl_torch.fuse(onedsl_torch.convert(model))
    assert onedsl_torch.revert(model) is model
    assert [type(m) for m in model.modules()] == [type(m) for m in Block(residual).modules()]
    assert vars(model.norm).keys() == vars(nn.BatchNorm2d(4)).keys()


@dynamo
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_torch_jit(x):
    plain = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
    fused = onedsl_torch.fuse(copy.deepcopy(plain))
    check_same(plain, torch.jit.script(copy.deepcopy(fused)), x)
    check_same(plain, onedsl_torch.fuse(torch.jit.script(copy.deepcopy(plain))), x)
    traced = torch.jit.trace(copy.deepcopy(fused), x, check_trace=False)
    assert torch.allclose(traced(x), fused(x), atol=1e-6)


@dynamo
def test_forward_mode(x):
    plain = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU())
    fused = onedsl_torch.fuse(copy.deepcopy(plain))
    tangents = []
    for model in plain, fused:
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x) * x)
            tangents.append(torch.autograd.forward_ad.unpack_dual(model(dual)).tangent)
    assert torch.equal(*tangents)


def test_fuse_conv_bn_eval(x):
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
    onedsl_torch.fuse(model)(x)
    model.eval()
    joined = nn.utils.fuse_conv_bn_eval(model[0], model[1])
    assert torch.allclose(joined(x).relu(), model(x), atol=1e-5)
    assert torch.allclose(joined(x), model[1](model[0](x)), atol=1e-5)


def test_models_can_be_traced_by_fx(x):
    plain = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
    fused = torch.fx.symbolic_trace(onedsl_torch.fuse(copy.deepcopy(plain)))
    check_same(plain, fused, x)


@dynamo
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_torch_compile(x):
    plain = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
    fused = onedsl_torch.fuse(copy.deepcopy(plain))
    torch._dynamo.reset()
    check_same(plain, torch.compile(fused, backend="aot_eager", fullgraph=True), x)


@dynamo
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_deferred_results_in_compiled_functions(x):
    norm = onedsl_torch.fuse(nn.BatchNorm2d(4))
    torch._dynamo.reset()
    function = torch.compile(lambda t: torch.relu(t) * 2, backend="aot_eager")
    twin = copy.deepcopy(norm)
    gradients = []
    for layer, run_ in ((norm, function), (twin, lambda t: torch.relu(t) * 2)):
        src = x.clone().requires_grad_()
        run_(layer(src * 1)).square().sum().backward()
        gradients.append(src.grad)
    assert torch.allclose(*gradients, atol=1e-4)


# What deferred results are.


@pytest.fixture
def deferred(x):
    norm = nn.BatchNorm2d(4)
    nn.init.uniform_(norm.weight)
    twin = copy.deepcopy(norm)
    src = x.clone().requires_grad_()
    result = onedsl_torch.fuse(norm)(src * 1)
    assert type(result) is _deferred_tensor.DeferredBatchNorm
    return result, twin(src), src


def test_metadata_needs_no_values(deferred, kinds):
    result, plain, _ = deferred
    assert result.shape == plain.shape
    assert (result.dtype, result.device, result.layout) == (plain.dtype, plain.device, plain.layout)
    assert (result.stride(), result.ndim, result.numel()) == (plain.stride(), 4, plain.numel())
    assert result.requires_grad
    assert not result.is_leaf
    assert result.is_contiguous()
    assert isinstance(result, torch.Tensor)
    assert not kinds
    assert type(result) is _deferred_tensor.DeferredBatchNorm


USES = {
    "grad_fn": lambda y: y.grad_fn is not None,
    "repr": lambda y: repr(y)[:6],
    "pickle": lambda y: pickle.loads(pickle.dumps(y)).shape,
    "len": len,
    "save": lambda y: torch.save(y, io.BytesIO()),
    "pointer": lambda y: y.data_ptr() > 0,
    "numpy": lambda y: float(y.detach().numpy().sum().round(2)),
    "data": lambda y: float(y.data.sum().round(decimals=2)),
    "list": lambda y: len(y.tolist()),
    "bool": lambda y: bool(y[0, 0, 0, 0] > 1e9),
    "iteration": lambda y: [t.mean().detach().round(decimals=2).item() for t in y],
    "storage": lambda y: y.untyped_storage().nbytes(),
    "dlpack": lambda y: torch.from_dlpack(y.detach()).shape,
    "weakref": lambda y: weakref.ref(y)() is y,
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("after_relu", [False, True])
def test_uses(deferred, use, after_relu):
    result, plain, _ = deferred
    if after_relu:  # then the result cannot become an ordinary tensor
        outputs = F.relu(plain), F.relu(result)
        assert torch.allclose(*outputs, atol=1e-5)
    assert USES[use](plain) == USES[use](result)


@pytest.mark.parametrize("use", [copy.deepcopy, lambda t: t.numpy()])
def test_errors_are_pytorch_s(deferred, use):
    for tensor in deferred[:2]:
        with pytest.raises(RuntimeError):
            use(tensor)


def test_a_plain_use_leaves_an_ordinary_tensor(deferred, kinds):
    result, plain, src = deferred
    alias = result
    assert torch.allclose(result + 1, plain + 1, atol=1e-5)
    assert type(alias) is torch.Tensor
    assert kinds == {"plain": 1}
    result.mul_(2)
    gradients = [torch.autograd.grad(t.sigmoid().sum(), src)[0] for t in (result, plain.mul_(2))]
    assert torch.allclose(*gradients, atol=1e-5)


@pytest.mark.parametrize("residual", [False, True])
def test_a_relu_in_place_changes_all_references(deferred, residual):
    result, plain, src = deferred
    alias = result
    if residual:
        result += src * 1
        plain = plain + src * 1
    assert result.relu_() is alias
    assert type(alias) is torch.Tensor
    expected = plain.relu()
    assert torch.allclose(alias, expected, atol=1e-5)
    gradients = [torch.autograd.grad(Cube.apply(t).sum(), src)[0] for t in (alias, expected)]
    assert torch.allclose(*gradients, atol=1e-4)


def test_gradients_of_the_result_itself(deferred):
    result, plain, _ = deferred
    seen = {}
    for name, y in (("deferred", result), ("plain", plain)):
        z = F.relu(y)
        y.retain_grad()
        grads = seen[name] = list(torch.autograd.grad(z.square().sum(), [y], retain_graph=True))
        y.register_hook(lambda g, grads=grads: grads.append(g))
        z.square().sum().backward()
        grads.append(y.grad)
    assert len(seen["plain"]) == 3
    for a, b in zip(seen["deferred"], seen["plain"], strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_batched_and_second_gradients(deferred):
    result, plain, src = deferred
    directions = torch.randn(3, *src.shape)
    found = []
    for y in result, plain:
        z = F.relu(y)
        batched = torch.autograd.grad(z, src, directions, retain_graph=True, is_grads_batched=True)
        (first,) = torch.autograd.grad(z.pow(3).sum(), src, create_graph=True)
        (second,) = torch.autograd.grad((first * src).sum(), src)
        found.append([*batched, first, second])
    gradients = [[Gradients(t.detach() for t in each)] for each in found]
    assert find_difference(*gradients, 1e-4) is None


def test_statistics_are_updated_at_once_and_once(x):
    norm = onedsl_torch.fuse(nn.BatchNorm2d(4))
    twin = nn.BatchNorm2d(4)
    twin(x)
    running = norm.running_mean
    result = norm(x.requires_grad_() * 1)
    for _ in range(2):
        assert torch.allclose(running, twin.running_mean)
        assert torch.allclose(norm.running_var, twin.running_var)
        assert norm.num_batches_tracked == 1
        F.relu(result)
        result.sum()


def test_memory_that_is_not_pytorch_s(kinds):
    """Lazy clones are impossible."""
    array = np.random.default_rng(0).normal(size=(4, 4, 5, 5)).astype("f")
    plain = nn.BatchNorm2d(4)
    fused = onedsl_torch.fuse(copy.deepcopy(plain))
    assert torch.equal(
        F.relu(fused(torch.from_numpy(array))), F.relu(plain(torch.from_numpy(array)))
    )
    src = torch.randn(4, 4, 5, 5, requires_grad=True)
    outputs = [F.relu(layer(src * 1) + torch.from_numpy(array)) for layer in (fused, plain)]
    assert torch.allclose(*outputs, atol=1e-5)
    assert not kinds["add relu"]


def test_expected_results_are_used_only_where_they_are_right():
    """A step computes early what the step before used; another use must not get that result."""
    torch.manual_seed(0)
    plain = nn.BatchNorm2d(4)
    fused = onedsl_torch.fuse(copy.deepcopy(plain))
    uses = (
        lambda m, x: F.relu(m(x)),
        lambda m, x: F.relu6(m(x)),
        lambda m, x: F.relu(m(x) + x),
        lambda m, x: m(x).sigmoid(),
        lambda m, x: [m(x), F.relu6(m(2 * x))][0].relu(),  # another upper bound in between
        lambda m, x: F.relu(m(x)) + F.relu6(m(x) + 1),
    )
    for i in torch.randint(len(uses), (200,)).tolist():
        x = 4 * torch.randn(3, 4, 5, 5)
        results = []
        for layer in (plain, fused):
            layer.zero_grad()
            leaf = x.clone().requires_grad_()
            out = uses[i](layer, leaf * 1)
            out.square().sum().backward()
            running = (layer.running_mean.clone(), layer.running_var.clone())
            results.append((out.detach(), leaf.grad, layer.weight.grad, layer.bias.grad, *running))
        for expected, got in zip(*results, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("expected", ["relu", "add", "plain"])
def test_expectations_do_not_change_bits(expected):
    """The first call expects nothing, and the others what the calls before used."""
    use = {
        "relu": lambda y, x: F.relu(y),
        "add": lambda y, x: F.relu(y + x),
        "plain": lambda y, x: y.sigmoid(),
    }[expected]
    layer = onedsl_torch.fuse(nn.BatchNorm2d(4, momentum=0.0))
    x = torch.randn(3, 4, 9, 9, requires_grad=True)
    results = []
    for _ in range(4):
        x.grad = None
        layer.zero_grad()
        y = x * 1
        out = use(layer(y), y)
        out.square().sum().backward()
        results.append((out.detach(), x.grad, layer.weight.grad, layer.bias.grad))
    for more in results[1:]:
        assert all(map(torch.equal, results[0], more))


def test_small_tensors_are_not_deferred(x, monkeypatch):
    monkeypatch.undo()
    assert type(onedsl_torch.fuse(nn.BatchNorm2d(4))(x)) is torch.Tensor


def test_tensors_that_threads_may_share_are_not_held(x, kinds):
    """Lazy clones of one tensor in several threads are a data race."""
    norm = onedsl_torch.fuse(nn.BatchNorm2d(4))
    leaf = x.clone().requires_grad_()
    for shared in x, leaf, leaf.view_as(leaf):
        assert type(norm(shared)) is torch.Tensor
        F.relu(norm(leaf * 1) + shared)
        assert not torch._C._is_cow_tensor(shared)
    assert not kinds["add relu"]


def test_threads(x):
    model = onedsl_torch.fuse(Block(lambda m, x: m.relu(m.norm(m.conv(x)) + x)))
    model.norm.track_running_stats = False
    model(x).square().sum().backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    wrong = []

    def work():
        for _ in range(50):
            parameters = [p for p in model.parameters() if p.grad is not None]
            got = torch.autograd.grad(model(x).square().sum(), parameters)
            wrong.extend(a for a, b in zip(got, expected, strict=True) if not torch.equal(a, b))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_memory_is_freed(x):
    model = onedsl_torch.fuse(Block(residual))
    output = model(x)
    model.last = None
    node = weakref.ref(output.grad_fn)
    output.sum().backward()
    del output
    assert node() is None


# report


class Mine(nn.BatchNorm2d):
    pass


def test_report(x, caplog):
    norm = nn.utils.parametrize.register_parametrization
    model = nn.Sequential(nn.BatchNorm2d(4), nn.BatchNorm2d(4), Mine(4), nn.LazyBatchNorm2d())
    norm(model[1], "weight", nn.Identity())
    with caplog.at_level(logging.INFO, "onedsl.torch"):
        onedsl_torch.fuse(model)
    other = "Mine is not one of PyTorch's BatchNorm1d, 2d and 3d"
    lazy = "it is lazy and was not initialized by an input"
    reported = onedsl_torch.report(model)
    assert reported == [
        ("0", "FusedBatchNorm2d", "fused", "it is fused", ""),
        ("1", "ParametrizedFusedBatchNorm2d", "fused", "it is fused", ""),
        ("2", "Mine", "PyTorch's", other, other),
        ("3", "LazyBatchNorm2d", "PyTorch's", lazy, lazy),
    ]
    assert str(reported) == (
        f"4 batch-norm layers: 2 fused, 2 PyTorch's; fuse skips 1: {other}; fuse skips 1: {lazy}"
    )
    assert str(onedsl_torch.report(nn.ReLU())) == "0 batch-norm layers"
    assert "fused 2 batch-norm layers, skipped 2" in caplog.text
    assert f"skipped 2 (Mine): {other}" in caplog.text
    model(x).sum().backward()


def test_hooks_see_ordinary_tensors(x):
    norm = onedsl_torch.fuse(nn.BatchNorm2d(4))
    seen = []
    norm.register_forward_hook(lambda _m, _i, out: seen.append(type(out)))
    F.relu(norm(x)).sum().backward()
    assert seen == [torch.Tensor]


class Saved(Block):
    def __init__(self):
        super().__init__(None)

    def forward(self, x):
        h = self.conv(x)
        y = self.norm(h)
        y += h
        return self.relu(y)


def test_fused_models_are_saved_and_copied(x):
    torch.manual_seed(0)
    model = onedsl_torch.fuse(nn.Sequential(nn.Conv2d(4, 4, 1), Saved(), Saved()))
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (torch.load(file, weights_only=False), copy.deepcopy(model)):
        assert [r.state for r in onedsl_torch.report(other)][:2] == ["fused", "fused"]
        check_same(copy.deepcopy(model), other, x)
    assert b"onedsl.torch._" not in file.getvalue()


@pytest.mark.parametrize(
    ("name", "relus", "sums"),
    [
        ("resnet50", 33, 16),
        ("mobilenet_v2", 35, 0),
        pytest.param("densenet121", 121, 0, marks=pytest.mark.slow),
    ],
)
def test_networks(name, relus, sums, kinds):
    torch.manual_seed(0)
    plain = getattr(networks, name)(10)
    fused = onedsl_torch.fuse(copy.deepcopy(plain))
    assert list(fused.state_dict()) == list(plain.state_dict())
    x = torch.randn(4, 3, 32, 32)
    exact = copy.deepcopy(plain).double()(x.double()).detach()
    outputs = [m(x) for m in (plain, fused)]
    errors = [float((y.detach() - exact).norm() / exact.norm()) for y in outputs]
    assert errors[1] < 3 * errors[0] + 1e-6
    outputs[1].sum().backward()
    assert (kinds["relu"], kinds["add relu"]) == (relus, sums)
    plain_layers = {"resnet50": 4, "mobilenet_v2": 17, "densenet121": 0}[name]
    assert kinds["plain backward"] == plain_layers
