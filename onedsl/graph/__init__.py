"""oneDNN graphs as they were written: ops, logical tensors, partitions, and oneDNN's JSON format.

``op.graph(spec)`` of the operators with an attribute data_format returns the `Graph` of exactly the
ops, attributes and tensors that were asked for. `Graph.partitions` is what oneDNN makes of it, and
`Graph.compile` compiles it for calls on the caller's memory. Nothing is added, reshaped or
converted.

`Graph.repaired` instead returns a graph for which oneDNN computes what its documentation says of
the original: ``backend="onednn"`` runs it, and `Graph.changes` lists what differs.

`Graph.from_json` reads files written by `Graph.to_json`, files of benchdnn's ``inputs/graph``, and
oneDNN's dumps (``ONEDNN_GRAPH_DUMP=graph`` or ``subgraph``), with the names of ops in oneDNN 3.0 or
newer. oneDNN writes dumps only if it was built with ``ONEDNN_ENABLE_GRAPH_DUMP``, which the PyPI
wheels are not.

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

from ._defects import documented
from ._graph import Graph
from ._parts import GraphOp, LogicalTensor, Partition
from .compiled_graph import CompiledGraph

__doc__ = (__doc__ or "") + documented()
__docformat__ = "numpy"
__all__ = ["CompiledGraph", "Graph", "GraphOp", "LogicalTensor", "Partition"]


def __dir__() -> list[str]:
    return __all__
