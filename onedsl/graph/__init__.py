"""oneDNN graphs: ops, logical tensors, partitions, and oneDNN's JSON format.

A `Graph` is returned by ``compiled.graph`` and by `Graph.from_json`, which reads files written by
`Graph.to_json`, files of benchdnn's ``inputs/graph``, and oneDNN's dumps
(``ONEDNN_GRAPH_DUMP=graph`` or ``subgraph``). oneDNN writes dumps only if it was built with
``ONEDNN_ENABLE_GRAPH_DUMP``, which the PyPI wheels are not.
`BatchNormTrainingBackward.to_json` and ``from_json`` convert an operator to this JSON format and
back.

Examples
--------
>>> op = onedsl.BatchNormTrainingBackward(epsilon=1e-5)
>>> graph = onedsl.graph.Graph.from_json(op.to_json(onedsl.TensorSpec((8, 7, 7, 64))))
>>> graph.ops[0].kind, graph.ops[0].outputs[1].shape
('BatchNormTrainingBackward', (64,))
"""

from ._graph import Graph, graph_from_core
from ._parts import GraphOp, LogicalTensor, Partition

__docformat__ = "numpy"
__all__ = ["Graph", "GraphOp", "LogicalTensor", "Partition"]


def __dir__() -> list[str]:
    return __all__


of_core = graph_from_core
