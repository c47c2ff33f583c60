"""Repairs of graphs: oneDNN computes of the result what its documentation says of the original."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from .. import _core
from ..runtime import onednn
from ..runtime.errors import UnsupportedError
from ..tensors.spec import DataFormat, c_strides
from ._defects import defects_of, statistics_of
from ._parts import KINDS, GraphOp, LogicalTensor, tensors_of
from .check import check_graph


class Repairs:
    """The repaired ops of a graph. Each method is a repair, and records what it changed."""

    def __init__(self, ops: Sequence[GraphOp]) -> None:
        """Apply the repairs of all known defects, and divide tensors among the threads."""
        check_graph(ops)
        self.ops = list(ops)
        self.changes: list[str] = []
        self.constants: dict[int, float] = {}
        """Numbers that fill the inputs that were added, by id of the tensor."""
        used = {tensor.id for tensor in self._tensors()}
        self._new_ids = (number for number in itertools.count() if number not in used)
        norms = [i for i, op in enumerate(self.ops) if KINDS[op.kind].is_batch_norm]
        for i in norms:
            self._repair_defects(i)
            self.add_parameters(i)
        if norms:
            self.to_rank_4(norms[0])

    def _repair_defects(self, index: int) -> None:
        """Repair the defects of an op. Raise for one without a repair unless oneDNN rejects it."""
        for defect in defects_of(self.ops[index]):
            if defect.repair:
                getattr(self, defect.repair)(index)
            elif defect.effect != "refused":
                message = defect.message(onednn.version())
                raise UnsupportedError(f"graph cannot be repaired: {message}", "unimplemented")

    def add_parameters(self, index: int) -> None:
        """Add gamma = 1 and beta = 0 where they are absent."""
        op = self.ops[index]
        for port in KINDS[op.kind].ports.inputs[len(op.inputs) :]:
            value = {"gamma": 1.0, "beta": 0.0}[port.name]
            tensor = self._like(op.inputs[-1])
            self.constants[tensor.id] = value
            op = replace(op, inputs=(*op.inputs, tensor))
            self._change(index, op, f"{port.name} = {value:g} added")

    def add_sums(self, index: int) -> None:
        """Add the outputs diff_gamma and diff_beta, and ignore gamma where oneDNN documents it."""
        op = self.ops[index]
        if len(op.outputs) == 1 and len(op.inputs) == 5:
            gamma = self._like(op.inputs[4])
            self.constants[gamma.id] = 1.0
            ignoring = replace(op, inputs=(*op.inputs[:4], gamma))
            self._change(index, ignoring, "gamma = 1 instead of the gamma that the op ignores")
        added = [port.name for port in KINDS[op.kind].ports.outputs[len(op.outputs) :]]
        for _ in added:
            op = self.ops[index]
            dropped = replace(op, outputs=(*op.outputs, self._like(op.inputs[2])))
            self._change(index, dropped, f"{' and '.join(added)} computed and dropped")

    def statistics_to_f32(self, index: int) -> None:
        """Convert statistics of 16 bits to f32, which runs of the compiled graph do."""
        op = self.ops[index]
        statistics = statistics_of(op)

        def converted(tensors: Sequence[LogicalTensor]) -> tuple[LogicalTensor, ...]:
            return tuple(replace(t, dtype="f32") if t in statistics else t for t in tensors)

        op = replace(op, inputs=converted(op.inputs), outputs=converted(op.outputs))
        self._change(index, op, f"statistics converted from {statistics[0].dtype} to f32")

    def to_rank_4(self, index: int) -> None:
        """Reshape the graph's tensors to rank 4, with enough images for all threads."""
        op = self.ops[index]
        norms = [op for op in self.ops if KINDS[op.kind].is_batch_norm]
        formats = {(op.data_format, op.inputs[0].shape) for op in norms}
        strides = {t.strides for t in self._tensors() if t.shape == op.inputs[0].shape}
        geometry = op.geometry
        if geometry is None or len(strides) > 1 or len(formats) > 1:
            if all(4 <= len(op.inputs[0].shape or ()) <= 5 for op in norms):
                return
            raise UnsupportedError(
                "graph must have tensors of one shape and one memory order, without gaps, to be "
                "reshaped to 4 dimensions",
                "unimplemented",
            )
        outer, channels, inner = geometry
        data_format, shape = DataFormat.NCX, (outer, channels, inner, 1)
        if inner == 1:
            images = _num_images(outer)
            data_format, shape = DataFormat.NXC, (images, 1, outer // images, channels)
        old = op.inputs[0].shape, op.inputs[0].strides
        if old == (shape, c_strides(shape)) and op.data_format == data_format:
            return
        text = f"reshaped to {'x'.join(map(str, shape))}"
        text += "" if op.data_format == data_format else f" in {data_format}"

        def reshaped(tensors: Sequence[LogicalTensor]) -> tuple[LogicalTensor, ...]:
            return tuple(
                replace(t, shape=shape, strides=c_strides(shape)) if t.shape == old[0] else t
                for t in tensors
            )

        for i, each in enumerate(self.ops):
            attrs = dict(each.attrs)
            if KINDS[each.kind].is_batch_norm:
                attrs["data_format"] = str(data_format)
            inputs, outputs = reshaped(each.inputs), reshaped(each.outputs)
            self._change(i, replace(each, attrs=attrs, inputs=inputs, outputs=outputs), text)

    def _change(self, index: int, op: GraphOp, text: str) -> None:
        """Replace an op and record the change, once for the whole graph."""
        self.ops[index] = op
        if text not in self.changes:
            self.changes.append(text)

    def _tensors(self) -> list[LogicalTensor]:
        return [tensor for op in self.ops for tensor in tensors_of(op)]

    def _like(self, tensor: LogicalTensor) -> LogicalTensor:
        """Return a new tensor."""
        return replace(tensor, id=next(self._new_ids))


def _num_images(rows: int) -> int:
    """Return the number of images into which an NXC tensor of some rows is divided.

    Any divisor of the number of rows is possible, but oneDNN blocks for the cache only if there are
    enough images for all threads: on tensors near the size of the cache this is 3 times as fast as
    one image.
    """
    threads = _core.max_threads()
    return next((n for n in range(threads, 8 * threads + 1, threads) if rows % n == 0), 1)
