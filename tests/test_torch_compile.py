"""torch.compile, traces and dispatch modes see onedsl's gradient, and no other is run."""

from __future__ import annotations

import copy
import io

import pytest
from torch_helpers import SmallModel, dynamo, inputs, modes, onedsl_torch, random_layer, torch


@pytest.fixture
def model():
    torch.manual_seed(0)
    return SmallModel()


@dynamo
@modes
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(model, train, backend):
    eager = onedsl_torch.convert(model).train(train)
    compiled = copy.deepcopy(eager)
    run = torch.compile(compiled, fullgraph=True, backend=backend)
    for seed in 0, 1:
        x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(seed))
        grads = []
        for call, m in ((eager, eager), (run, compiled)):
            m.zero_grad()
            call(x).square().sum().backward()
            grads.append([p.grad for p in m.parameters()])
        scale = max(float(g.norm()) for g in grads[0])
        for a, b in zip(*grads, strict=True):
            assert float((a - b).norm()) < 1e-5 * scale
        for a, b in zip(eager.buffers(), compiled.buffers(), strict=True):
            assert torch.allclose(a, b, rtol=1e-5)


@dynamo
def test_the_compiled_backward_pass_is_onedsl_s(model):
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    ops = []

    def record(graph, _):
        ops.extend(str(node.target) for node in graph.graph.nodes)
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=record, bw_compiler=record)
    run = torch.compile(onedsl_torch.convert(model), fullgraph=True, backend=backend)
    run(torch.randn(4, 3, 5, 5)).sum().backward()
    assert sum("onedsl.batch_norm_backward" in op for op in ops) == 3
    assert not any("native_batch_norm_backward" in op for op in ops)


def test_eager_layers_do_not_run_pytorch_s_gradient(model):
    with torch.profiler.profile() as profile:
        onedsl_torch.convert(model)(torch.randn(4, 3, 5, 5)).sum().backward()
    names = {event.key for event in profile.key_averages()}
    assert "aten::native_batch_norm" in names
    assert not any("batch_norm_backward" in name for name in names if "aten" in name)


@dynamo
def test_other_layouts_and_traces_are_pytorch_s():
    layer = random_layer(2).eval()
    src, _ = inputs(2, "f32")
    assert torch.allclose(layer(src.to_mkldnn()).to_dense(), layer(src), atol=1e-5)
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(layer, src), file)
    file.seek(0)
    assert torch.equal(torch.jit.load(file)(src), layer(src))


def test_dispatch_modes_and_traces_see_the_gradient():
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._python_dispatch import TorchDispatchMode

    layer = random_layer(2)
    src, diff_dst = inputs(2, "f32")

    def gradient(x, dy):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(layer(x), x, dy)[0]

    traced = make_fx(gradient)(src, torch.ones_like(diff_dst))
    assert torch.allclose(traced(src, diff_dst), gradient(src, diff_dst), atol=1e-6)
    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with Mode():
        gradient(src, diff_dst)
    assert "onedsl.batch_norm_backward.default" in seen
