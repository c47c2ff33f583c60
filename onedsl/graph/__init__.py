"""oneDNN graphs as they were written: ops, logical tensors, partitions, and oneDNN's JSON format.

``op.graph(spec)`` of `BatchNormTrainingBackward` and `BatchNormForwardTraining` returns the `Graph`
of exactly the op, attributes and tensors that were asked for. `Graph.partitions` is what oneDNN
makes of it, and `Graph.compile` compiles it for calls on the caller's memory. Nothing is added,
reshaped or converted.

What oneDNN 3.2 does with a graph of one `BatchNormTrainingBackward`, for types that it supports:

| outputs | gamma | NXC, 2 or 3 dimensions | NXC, 4 or 5 dimensions | NCX, 2 to 5 dimensions |
|---|---|---|---|---|
| 3 | yes | refused | right | right |
| 3 | no | refused | refused | refused |
| 2 | yes | refused | refused | refused |
| 2 | no | refused | refused | refused |
| 1 | yes | refused | wrong | wrong |
| 1 | no | refused | wrong | wrong |

- right: within the tolerance of ``onedsl.testing.assert_close(..., backend="onednn")``.
- wrong: diff_src is the gradient for constant mean and variance, without gamma. Calls warn with
  `OneDNNDefectWarning`.
- refused: UnsupportedError, with oneDNN's message and status, or with onedsl's reason where oneDNN
  would end a C++ program.

f32 runs on every CPU, bf16 with f32 statistics needs AVX512, and f16 needs AVX512_FP16. bf16
statistics are always refused. `BatchNormForwardTraining` is right with 4 dimensions or more and
refused with fewer.

``backend="onednn"`` instead changes graphs so that oneDNN computes the gradient for every call:
``compiled.graph`` is the changed graph, and `Graph.changes` lists the changes.

`Graph.from_json` reads files written by `Graph.to_json`, files of benchdnn's ``inputs/graph``, and
oneDNN's dumps (``ONEDNN_GRAPH_DUMP=graph`` or ``subgraph``). oneDNN writes dumps only if it was
built with ``ONEDNN_ENABLE_GRAPH_DUMP``, which the PyPI wheels are not.

Examples
--------
>>> op = onedsl.BatchNormTrainingBackward(epsilon=1e-5)
>>> graph = op.graph(onedsl.TensorSpec((8, 7, 7, 64)))
>>> graph.ops[0].kind, graph.ops[0].outputs[1].shape
('BatchNormTrainingBackward', (64,))
>>> print(graph.partitions()[0])
partition of op 0: BatchNormTrainingBackward, supported
>>> compiled = graph.compile()
>>> inputs = onedsl.testing.random_problem((8, 7, 7, 64))._asdict()
>>> results = compiled(**inputs)  # src, diff_dst, mean, variance, gamma
>>> results["diff_src"].shape
(8, 7, 7, 64)
"""

from ._compiled_graph import CompiledGraph
from ._graph import Graph
from ._parts import GraphOp, LogicalTensor, Partition

__docformat__ = "numpy"
__all__ = ["CompiledGraph", "Graph", "GraphOp", "LogicalTensor", "Partition"]


def __dir__() -> list[str]:
    return __all__
