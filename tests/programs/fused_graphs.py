"""Runs the fusion pass on random graphs around one batch norm, and compares them before and after.

Usage: python tests/programs/fused_graphs.py NUMBER_OF_GRAPHS [SEED] [--compile]

A graph is a batch norm, an activation and their gradients, in a random form, in which some
arguments are replaced: by a value of another shape, dtype or memory format, by one that depends on
any other node, by another number or None. Some results are returned, too, and views of some. Graphs
are evaluated in float64 and by onedsl's kernels, and values and strides of the results are
compared. With --compile, inductor and onedsl compile them, too.
"""

import collections
import functools
import operator
import random
import sys
import types

import torch
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.pattern_matcher import stable_topological_sort
from torch._prims_common import check_significant_strides
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map

from onedsl.operators.attributes import ACTIVATIONS
from onedsl.torch import _fusion_pass
from onedsl.torch._operators import batch_norm_training, batch_norm_training_backward

F = torch.nn.functional

aten = torch.ops.aten
convert = torch.ops.prims.convert_element_type.default
DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((4, 3, 2, 3), (6, 3), (3, 3, 5), (2, 4, 1, 3))
NUMBERS = (0, 1, 2, 3, 0.5, 5.0, 6.0, 0.7, -1, float("inf"), True, False, None)
NO_SCHEMA = types.SimpleNamespace(arguments=())
SWAPPED = {
    aten.relu.default: [aten.neg.default, aten.sigmoid.default],
    aten.silu.default: [aten.hardswish.default, aten.sigmoid.default],
    aten.silu_backward.default: [aten.hardswish_backward.default, aten.sigmoid_backward.default],
    aten.hardswish.default: [aten.silu.default, aten.hardsigmoid.default],
    aten.hardswish_backward.default: [aten.silu_backward.default],
    aten.gelu.default: [aten.silu.default],
    aten.sigmoid.default: [aten.tanh.default, aten.hardsigmoid.default],
    aten.add.Tensor: [aten.sub.Tensor, aten.mul.Tensor],
    aten.mul.Tensor: [aten.add.Tensor, aten.div.Tensor],
    aten.div.Tensor: [aten.mul.Tensor],
}
# Functions that are an activation: its name, the function of an argument and a parameter, and
# parameters, some of which cannot be fused.
FORMS = [
    ("relu", lambda x, _: F.relu(x), (None,)),
    ("relu", lambda x, clip: F.hardtanh(x, 0, clip), (6, 6.0, 0.7, 1.0)),
    ("leaky_relu", F.leaky_relu, (0.01, 0.2, 0, 1, -0.5)),
    ("silu", lambda x, _: F.silu(x), (None,)),
    ("silu", lambda x, _: x * x.sigmoid(), (None,)),
    ("silu", lambda x, _: x.sigmoid() * x, (None,)),
    ("hardswish", lambda x, _: F.hardswish(x), (None,)),
    ("hardswish", lambda x, _: x * F.hardsigmoid(x), (None,)),
    ("hardswish", lambda x, _: x * F.relu6(x + 3) / 6, (None,)),
    ("hardswish", lambda x, _: x * (F.relu6(x + 3.0) / 6.0), (None,)),
    ("gelu", lambda x, _: F.gelu(x), (None,)),
    ("gelu_tanh", lambda x, _: F.gelu(x, approximate="tanh"), (None,)),
]
assert {name for name, *_ in FORMS} == {*ACTIVATIONS}, "FORMS must have every activation"


@functools.cache
def traced(form, parameter):
    """Return the graph of a function's result and gradient."""

    def run(x, diff):
        y = FORMS[form][1](x, parameter)
        return y, torch.autograd.grad(y, x, diff)[0]

    return make_fx(run)(torch.ones(2, requires_grad=True), torch.ones(2)).graph


def build(rng):
    """Return a graph that is fused, and the values of its inputs."""
    graph, dtype, shape = Graph(), rng.choice(DTYPES), rng.choice(SHAPES)
    call, values = graph.call_function, {}
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))

    def given(size, dtype=torch.float32):
        value = torch.randn(size, generator=generator).to(dtype)
        if len(size) > 1:
            own = order if rng.random() < 0.8 else rng.sample(order, len(size))
            value = value.permute(own).contiguous().permute(sorted(own, key=own.index))
        node = graph.placeholder(f"input_{len(values)}")
        values[node] = value
        return node

    channels = shape[1]
    order = list(range(len(shape)))  # of the axes in memory
    if rng.random() < 0.5:
        rng.shuffle(order)
    src, diff_dst, residual = (given(shape, dtype) for _ in range(3))
    weight, bias = (given((channels,)) for _ in range(2))
    has_residual, is_swapped = rng.random() < 0.5, rng.random() < 0.5
    form = rng.randrange(len(FORMS))
    activation, _, parameters = FORMS[form]
    weight, bias = (None if rng.random() < 0.1 else vector for vector in (weight, bias))
    if rng.random() < 0.2:
        other = call(batch_norm_training, (residual, weight, None, None, 1e-5, None, None))
        residual = call(operator.getitem, (other, 0))
    batch_norm = call(batch_norm_training, (src, weight, bias, None, 1e-5, None, None))
    value, *saved = (call(operator.getitem, (batch_norm, i)) for i in range(3))
    if has_residual:
        value = call(aten.add.Tensor, (residual, value) if is_swapped else (value, residual))
    of_form = traced(form, rng.choice(parameters))
    places = [node for node in of_form.nodes if node.op == "placeholder"]
    result, masked = graph.graph_copy(of_form, dict(zip(places, (value, diff_dst), strict=True)))
    if activation in ("relu", "leaky_relu") and rng.random() < 0.5:  # as in place
        masked.args = masked.args[0], result, *masked.args[2:]
    inputs = (masked, src, *saved, weight, *[None] * 6)
    gradient = call(batch_norm_training_backward, inputs)
    returned = [result, *(call(operator.getitem, (gradient, i)) for i in range(3))]
    if has_residual:
        returned.append(masked)
    graph.output(returned)
    return graph, values


def change(graph, rng):
    """Replace an argument of a node by another value, or a node's operator by another one."""
    calls = [node for node in graph.nodes if node.op == "call_function"]
    node = rng.choice(calls)
    if rng.random() < 0.1:
        node.target = rng.choice(SWAPPED.get(node.target, [node.target]))
        return
    arguments = _fusion_pass._arguments(node)
    name = rng.choice(list(arguments))
    old = arguments[name]
    if node.target is operator.getitem and name == "b":
        arguments[name] = rng.randrange(5)
    elif isinstance(old, Node) and node.target is not operator.getitem:
        arguments[name] = other_value(graph, old, rng)
    elif isinstance(old, (int, float, type(None))) and name != "dtype":  # PyTorch crashes
        nodes = [n for n in graph.nodes if n.op != "output"]
        arguments[name] = rng.choice(nodes) if rng.random() < 0.3 else rng.choice(NUMBERS)
    keywords = {
        p.name for p in getattr(node.target, "_schema", NO_SCHEMA).arguments if p.kwarg_only
    }
    node.args = tuple(value for name, value in arguments.items() if name not in keywords)
    node.kwargs = {name: value for name, value in arguments.items() if name in keywords}


def other_value(graph, old, rng):
    """Return a value to be used instead of a node: a new node, or another one."""
    call = graph.call_function
    another = rng.choice([node for node in graph.nodes if node.op != "output"])
    makers = (
        lambda: another,
        # Of the same shape and dtype, and depending on another node.
        lambda: call(aten.add.Tensor, (old, call(aten.sum.default, (another,)))),
        lambda: call(aten.mul.Tensor, (old, rng.choice((-1, 2, 0.5)))),
        lambda: call(aten.select.int, (old, 0, 0)),
        lambda: call(aten.unsqueeze.default, (old, 0)),
        lambda: call(aten.sum.default, (old,)),
        lambda: call(aten.narrow.default, (old, rng.randrange(2), 0, 1)),
        lambda: call(convert, (old, rng.choice((*DTYPES, torch.float64, torch.int32)))),
        lambda: call(aten.abs.default, (old,)),
        lambda: None,
        lambda: call(rng.choice((aten.alias.default, aten.clone.default)), (old,)),
        lambda: in_format(graph, old, rng),
    )
    return rng.choice(makers)()


def in_format(graph, node, rng):
    formats = torch.contiguous_format, torch.channels_last, torch.preserve_format
    return graph.call_function(aten.clone.default, (node,), {"memory_format": rng.choice(formats)})


def view(graph, node, rng):
    """Return a node whose value depends on the strides of another one."""
    call = graph.call_function
    makers = (
        lambda: call(aten.view.default, (node, [-1])),
        lambda: call(aten.view.default, (node, [2, -1])),
        lambda: call(aten.as_strided.default, (node, [3, 2], [2, 1])),
        lambda: call(aten.as_strided.default, (in_format(graph, node, rng), [5], [1], 1)),
    )
    return rng.choice(makers)()


def finish(graph, rng):
    """Let a graph return more results, and sort it. Return whether it has no cycle."""
    output = next(node for node in graph.nodes if node.op == "output")
    returned = list(output.args[0])
    nodes = [n for n in graph.nodes if n is not output]
    returned += rng.sample(nodes, rng.choice((0, 0, 0, 1, 2)))
    tuples = (batch_norm_training, batch_norm_training_backward)
    returned = [node for node in returned if node.target not in tuples]
    with graph.inserting_before(output):
        returned += [view(graph, node, rng) for node in returned if rng.random() < 0.1]
    output.args = (returned,)
    try:
        stable_topological_sort(graph)
    except AssertionError:
        return False
    graph.eliminate_dead_code()
    return True


def activate(value, activation, parameter):
    if activation == "relu":
        return value.clamp(0, parameter)
    function = next(f for name, f, _ in FORMS if name == activation)
    return function(value, 0.01 if parameter is None else parameter)


def exact_forward(src, weight, bias, residual, eps, activation, parameter):
    dst, *saved = aten.native_batch_norm(src, weight, bias, None, None, True, 0.1, eps)
    axes = [axis for axis in range(src.ndim) if axis != 1]
    variance = src.var(axes)
    dst = dst if residual is None else dst + residual
    if activation:
        dst = activate(dst, activation, parameter)
    dst = torch.empty_like(src).copy_(dst)  # in the order of src
    copies = [src.new_empty(0)] * 2
    if activation:
        ones = torch.ones_like(saved[0])
        copies = [ones if weight is None else weight, ones * 0 if bias is None else bias]
    return dst, *saved, variance, *copies


def exact_backward(
    diff_dst,
    src,
    mean,
    inverse_stddev,
    weight,
    forward_weight,
    forward_bias,
    residual,
    dst,
    activation,
    parameter,
):
    if activation:
        value = dst
        if dst is None:
            given = forward_weight, forward_bias, mean, inverse_stddev**-2
            value = aten.native_batch_norm(src, *given, False, 0.0, 0.0)[0]
            value = value if residual is None else value + residual
        value = value.clone().requires_grad_()
        result = activate(value, activation, parameter)
        if activation == "relu":  # clamp has other gradients at its bounds
            outside = (value <= 0) | (result == (torch.inf if parameter is None else parameter))
            diff_dst = torch.where(outside, 0.0, diff_dst)
        else:
            (diff_dst,) = torch.autograd.grad(result, value, diff_dst)
    saved = weight, None, None, mean, inverse_stddev
    # PyTorch's result is wrong for some strides of a gradient with an axis of one element.
    dense = diff_dst.contiguous(), src.contiguous()
    results = aten.native_batch_norm_backward(*dense, *saved, True, 1e-5, [True] * 3)
    results = [src.new_zeros(src.shape[1]) if r is None else r for r in results]
    results[0] = torch.empty_like(src).copy_(results[0])
    has_addition = residual is not None or dst is not None
    return *results, torch.empty_like(src).copy_(diff_dst) if has_addition else src.new_empty(0)


EXACT = {batch_norm_training: exact_forward, batch_norm_training_backward: exact_backward}


def evaluate(graph, values, exactly):
    """Return a graph's results; exactly: in float64. Otherwise nodes get their values as `val`."""

    def widen(value):
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.double()
        return torch.float64 if isinstance(value, torch.dtype) and value in DTYPES else value

    done = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            value = values[node].double() if exactly else values[node]
        elif node.op == "output":
            return [done[n] for n in node.args[0]]
        else:
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), done.__getitem__)
            target = node.target
            if exactly:
                args, kwargs = torch.fx.node.map_aggregate((args, kwargs), widen)
                target = EXACT.get(target, target)
            value = target(*args, **kwargs)
        done[node] = value
        if not exactly:
            node.meta["val"] = value
    raise AssertionError


def differences(graph, values, with_inductor):
    """Fuse a graph. Return what is reported of its batch norms, and what differs afterwards."""
    real, exact = (evaluate(graph, values, exactly) for exactly in (False, True))
    all_values = [node.meta.get("val") for node in graph.nodes]
    narrow = any(getattr(v, "dtype", None) in DTYPES[2:] for v in (*all_values, *values.values()))
    limit = 0.2 if narrow else 1e-4  # 16-bit results are rounded less often after the fusion
    differing = []
    compiled = []
    if with_inductor:
        run = GraphModule({}, strip(graph))
        for backend in "inductor", "onedsl":
            torch._dynamo.reset()
            compiled.append(torch.compile(run, backend=backend)(*values.values()))
    report = _fusion_pass.fuse(graph)
    real_after, exact_after = (evaluate(graph, values, exactly) for exactly in (False, True))
    decompose(graph)
    if _fusion_pass.KEPT & {node.target for node in graph.nodes}:
        differing.append("operators that are not decomposed")
    # PyTorch's decompositions are less precise than its kernels.
    decomposed = zip(evaluate(graph, values, False), real_after, strict=True)
    for a, b in decomposed:
        if not check_significant_strides(a, b)[0] or distance(a, b) > 100 * limit:
            differing.append(f"decomposed: {a.stride()}, {b.stride()}, {distance(a, b)}")
    for i, (theirs, ours) in enumerate(zip(*compiled, strict=True)):
        kinds = [(t.shape, t.dtype, t.stride()) for t in (ours, theirs)]
        # Without the fusion, a ReLU's argument may be rounded to a bound in 16 bits.
        errors = distance(ours, theirs), distance(ours, real_after[i])
        if kinds[0] != kinds[1] or min(errors) > limit:
            differing.append(f"compiled result {i}: {kinds}, {errors}")
    for i, (a, b) in enumerate(zip(real_after, real, strict=True)):
        kinds = [(t.shape, t.dtype, t.stride()) for t in (a, b)]
        if kinds[0] != kinds[1] or (not narrow and distance(a, b) > limit):
            differing.append(f"result {i} of the kernels: {kinds}, {distance(a, b)}")
        elif distance(exact_after[i], exact[i]) > 1e-6:  # hardsigmoid has a 1 / 6 in f32
            differing.append(f"result {i} by {distance(exact_after[i], exact[i])}")
    return report, differing


def decompose(graph):
    """Decompose what was not fused. The nodes get fake values, as those of compilers have."""
    with FakeTensorMode() as mode:
        for node in graph.nodes:
            if "val" in node.meta:
                node.meta["val"] = tree_map(mode.from_tensor, node.meta["val"])
    _fusion_pass.decompose(graph, select_decomp_table())


def strip(graph):
    """Return a copy of a graph without the values of its nodes."""
    copied = Graph()
    copied.output(copied.graph_copy(graph, {}))
    return copied


def distance(a, b):
    """Return the largest difference, relative to the largest finite value."""
    a, b = a.double(), b.double()
    same = (a == b) | (a.isnan() & b.isnan())
    finite = b[b.isfinite()].abs()
    scale = max(float(finite.max()), 1e-3) if finite.numel() else 1.0
    return 0.0 if same.all() else float((a - b)[~same].abs().nan_to_num(torch.inf).max()) / scale


def main(count, seed=0, compiled=False):
    torch.set_num_threads(1)  # tensors are small
    counts = collections.Counter()
    while counts["graphs"] < count:
        rng = random.Random(seed)
        graph, values = build(rng)
        for _ in range(rng.randrange(4)):
            change(graph, rng)
        try:
            is_valid = finish(graph, rng) and all(evaluate(graph, values, e) for e in (False, True))
        except Exception:  # of any kind: operators get arguments of any kind
            is_valid = False
        if is_valid:
            counts["graphs"] += 1
            text = str(graph)
            try:
                report, differing = differences(graph, values, compiled)
            except Exception as error:
                report, differing = [], [repr(error)]
            kinds = " ".join(report)
            counts[next(k for k in ("forward and backward", "with", "") if k in kinds)] += 1
            if differing:
                counts["wrong"] += 1
                print(f"seed {seed}: {differing}\n{text}\n{graph}\n", flush=True)
        else:
            counts["invalid"] += 1
        seed += 1
    print(
        f"{counts['graphs']} graphs: {counts['forward and backward']} fused forward and backward, "
        f"{counts['with']} forward, {counts['']} not; "
        f"{counts['invalid']} invalid ones were skipped; {counts['wrong']} wrong"
    )
    return counts["wrong"]


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:] if argument.isdigit()]
    sys.exit(main(*numbers, compiled="--compile" in sys.argv) > 0)
