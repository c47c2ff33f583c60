"""The backend of ``torch.compile(model, backend="onedsl")``: inductor with onedsl's batch norm.

PyTorch's batch norm in training and its gradient are decomposed into onedsl's operators, wherever
they are called. A pass over the joint graph (`_fusion_pass`) then includes additions and
activations. The entry point in pyproject.toml registers the backend.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._inductor.config
from torch._inductor.compile_fx import compile_fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.decomposition import select_decomp_table
from torch.fx import Graph, GraphModule

from .. import _core
from ..operators import attributes
from ..runtime import run_log
from . import _fusion_pass, _operators, _switch
from ._operators import batch_norm_training, batch_norm_training_backward, why_unsupported

_logger = logging.getLogger("onedsl.torch")
_aten = torch.ops.aten

_Counts = dict[str, collections.Counter[str]]
"""How many batch norms of a graph onedsl and inductor compute: by what is computed together with
them, and by the reason. Without the key "onedsl" if the graph comes from PyTorch's cache."""


def backend(
    model: GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Any:
    """Return the graph, compiled by inductor with its mode and options, and onedsl's batch norm."""
    inductor = torch._TorchCompileInductorWrapper(mode, options, None)
    if _switch.is_off():
        return inductor(model, inputs)
    _add_layout_rules()
    config = inductor.config
    name = "joint_custom_pre_pass"
    counts: _Counts = collections.defaultdict(collections.Counter)
    config[name] = _Pass(counts, config.get(name, getattr(torch._inductor.config, name)))
    compiled = compile_fx(model, inputs, config_patches=config, decompositions=_table(counts))
    if "onedsl" in counts:
        _log("a compiled graph", {name: counts[name] for name in ("onedsl", "inductor")})
    elif run_log.is_logged(_logger):
        return _log_first_run(compiled)
    return compiled


def _log(graph: str, counts: _Counts) -> None:
    if any(counts.values()):
        parts = []
        for name, described in counts.items():
            listed = "".join(f"; {n} {what}" for what, n in described.most_common())
            parts.append(f"{described.total()} by {name}{listed}")
        run_log.info(_logger, "batch norms of %s: %s", graph, " | ".join(parts))


def _log_first_run(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Log the forward passes in the first run of a graph that was not traced in this process."""
    runs = itertools.count()

    @functools.wraps(compiled)
    def run(*inputs: Any) -> Any:
        if next(runs) > 0:
            return compiled(*inputs)
        counts, thread = collections.Counter[str](), threading.get_ident()

        def count(call: run_log.Record) -> None:
            if not isinstance(call, run_log.CallRecord) or threading.get_ident() != thread:
                return
            if call.pass_ == "forward":
                counts[call.what.removeprefix("onedsl ")] += 1

        try:
            with run_log.subscribe(count):
                return compiled(*inputs)
        finally:
            _log("a compiled graph from PyTorch's cache", {"onedsl": counts})

    return run


class _Pass(CustomGraphPass):
    """The fusion pass, and after it the passes that the user has set: None, one, or a sequence."""

    def __init__(self, counts: _Counts, others: Any) -> None:
        self.counts = counts
        one = () if others is None else (others,)
        self.others = tuple(others) if isinstance(others, (list, tuple)) else one

    def __call__(self, graph: Graph) -> None:
        self.counts["onedsl"].update(_fusion_pass.fuse(graph))
        _fusion_pass.decompose(graph, select_decomp_table())
        for other in self.others:
            other(graph)

    def uuid(self) -> Any:
        """Return what identifies the pass and the decompositions in inductor's caches."""
        # The extension decides which batch norms are supported.
        modules = _fusion_pass, _operators, attributes, _core
        ids: list[Any] = [get_hash_for_files((__file__, *(m.__file__ for m in modules)))]
        for other in self.others:
            ids.append(other.uuid() if isinstance(other, CustomGraphPass) else None)
        return None if None in ids else tuple(ids)


class _Table(dict[Any, Callable[..., Any]]):
    """Decompositions that inductor's caches identify by name; `_Pass.uuid` covers the contents."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _Table, ()


def _table(counts: _Counts) -> dict[Any, Callable[..., Any]]:
    """Return inductor's decompositions with onedsl's for batch norm in training.

    The operators that the fusion pass needs whole are not decomposed: the pass does it.
    """
    table = dict(select_decomp_table())
    table |= {op: _unless_kept(table[op]) for op in _fusion_pass.KEPT & table.keys()}
    gradient = _aten.native_batch_norm_backward.default

    def forward(op: Any) -> Callable[..., Any]:
        plain = table[op]

        def decomposition(*arguments: Any) -> Any:
            src, weight, bias, *running, training, momentum, eps = arguments
            statistics = running or (None, None)
            inputs = src, *statistics, weight, bias
            reason = ""
            if training:
                reason = why_unsupported("forward_training", *inputs, eps=eps)
            if reason:
                counts["inductor"][f"for {reason}"] += 1
            if reason or not training:
                return plain(*arguments)
            dst, mean, inverse_stddev, variance, *_ = batch_norm_training(
                src, weight, bias, None, eps, None, None
            )
            batch = mean, variance
            new = (momentum * b + (1 - momentum) * r for b, r in zip(batch, running, strict=False))
            return dst, mean, inverse_stddev, *new

        return decomposition

    def backward(*arguments: Any) -> Any:
        diff_dst, src, weight, _, _, mean, inverse_stddev, train, eps, mask = arguments
        inputs = src, diff_dst, mean, inverse_stddev, weight
        if train and mask[0] and not why_unsupported("training_backward", *inputs, eps=eps):
            gradients = batch_norm_training_backward(
                diff_dst, src, mean, inverse_stddev, weight, None, None, None, None, None, None
            )
            return tuple(g if wanted else None for g, wanted in zip(gradients, mask, strict=False))
        return plain_backward(*arguments)

    ops = (
        _aten._native_batch_norm_legit_functional.default,
        _aten._native_batch_norm_legit.no_stats,
        gradient,
    )
    if not all(op in table for op in ops):
        _log_missing(*(str(op) for op in ops if op not in table))
        return _Table(table)
    plain_backward = table[gradient]
    return _Table({**table, gradient: backward} | {op: forward(op) for op in ops[:2]})


def _unless_kept(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """Return a decomposition of calls that have a symbolic number.

    PyTorch has tensors for these numbers in what it decomposes. In other operators, it inserts the
    number of the first call, before the fusion pass.
    """

    def decompose(*arguments: Any, **options: Any) -> Any:
        numbers = (torch.SymInt, torch.SymFloat)
        if any(isinstance(a, numbers) for a in (*arguments, *options.values())):
            return decomposition(*arguments, **options)
        return NotImplemented

    return decompose


@functools.cache  # once in a process
def _log_missing(*ops: str) -> None:
    _logger.warning(
        "inductor %s has no decompositions of %s, so it computes all batch norms itself; please"
        " report this",
        torch.__version__,
        ", ".join(ops),
    )


@functools.cache
def _add_layout_rules() -> None:
    """Let inductor produce all tensors of a call in src's order of axes, instead of copying them.

    PyTorch's layout tags cannot express this. Without the rule inductor makes the tensors
    contiguous where PyTorch's eager results are: the gradient of max pooling, for example. The rule
    needs internal functions of inductor; where one fails, inductor's own rule remains.
    """
    try:
        from torch._inductor.lowering import constrain_to_fx_strides, make_fallback

        def rule(node: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return _like_src(node, *args), kwargs
            except Exception:
                _log_layouts()
                return constrain_to_fx_strides(node, *args, **kwargs)

        for op in (batch_norm_training, batch_norm_training_backward):
            make_fallback(op, layout_constraint=rule, warn=False)
    except Exception:
        _log_layouts()


@functools.cache  # once in a process
def _log_layouts() -> None:
    _logger.warning(
        "inductor %s has other internal functions, so tensors may be copied between its kernels"
        " and onedsl's; please report this",
        torch.__version__,
        exc_info=True,
    )


def _like_src(node: Any, *args: Any) -> tuple[Any, ...]:
    """Return the arguments of a call, with tensors in src's order of axes."""
    from torch._inductor.ir import ExternKernel, FlexibleLayout, get_stride_order
    from torch._inductor.virtualized import V

    names = [argument.name for argument in node.target._schema.arguments]
    inputs = dict(zip(names, args, strict=False))
    src = inputs["src"]
    sizes = V.graph.sizevars.shape_env
    src.realize()
    strides = None
    if not isinstance(src.maybe_get_layout(), FlexibleLayout):
        with contextlib.suppress(NotImplementedError):  # views of inputs
            strides = src.get_stride()
    order = get_stride_order(strides or node.args[names.index("src")].meta["val"].stride(), sizes)
    if strides is None:
        inputs["src"] = ExternKernel.require_stride_order(src, order)
    for name in ("diff_dst", "residual", "dst"):
        if inputs.get(name) is not None:
            inputs[name] = ExternKernel.require_stride_order(inputs[name], order)
    return tuple(inputs.values())
