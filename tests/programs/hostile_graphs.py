"""Changes graphs at random and passes them to oneDNN. Prints how many ran and were refused."""

from __future__ import annotations

import dataclasses
import random
import sys
import warnings

from test_written_graphs import gradient, inputs_of

import onedsl
from onedsl.graph import Graph

warnings.simplefilter("ignore")
rng = random.Random(0)
NUMBERS = [-(2**63), -1, 0, 1, 2, 3, 15, 16, 17, 240, 2**31, 2**62, 2**63, 2**70]
KINDS = ["ReLU", "Add", "BatchNormForwardTraining", ""]


def numbers(most):
    return tuple(rng.choices(NUMBERS, k=rng.randrange(most)))


VALUES = {
    "id": lambda: rng.choice(NUMBERS),
    "dtype": lambda: rng.choice(["f32", "bf16", "f16", "s8", "", "undef"]),
    "shape": lambda: rng.choice([None, (), (16,), numbers(14)]),
    "strides": lambda: rng.choice([None, (), numbers(6)]),
    "layout_type": lambda: rng.choice(["any", "opaque", "undef", ""]),
    "property_type": lambda: rng.choice(["constant", "variable", "x"]),
}
ATTRS = [0, -1.0, float("nan"), 1e300, "NXC", "NCX", "", True, 3, (1, 2), "\0"]


def changed_tensors(tensors):
    tensors = list(tensors)
    action = rng.randrange(4)
    if action == 0 and tensors:
        del tensors[rng.randrange(len(tensors))]
    elif action == 1:
        tensors.append(rng.choice(tensors) if tensors else None)
        tensors = [t for t in tensors if t is not None]
    elif tensors:
        i, name = rng.randrange(len(tensors)), rng.choice(list(VALUES))
        tensors[i] = dataclasses.replace(tensors[i], **{name: VALUES[name]()})
    return tuple(tensors)


def changed(op):
    kind = rng.choice(["kind", "attrs", "id", "inputs", "outputs", "inputs", "inputs"])
    if kind == "kind":
        return dataclasses.replace(op, kind=rng.choice(KINDS))
    if kind == "attrs":
        name = rng.choice(["epsilon", "data_format", "momentum", "x"])
        return dataclasses.replace(op, attrs={**op.attrs, name: rng.choice(ATTRS)})
    if kind == "id":
        return dataclasses.replace(op, id=rng.choice(NUMBERS))
    return dataclasses.replace(op, **{kind: changed_tensors(getattr(op, kind))})


def replaced_everywhere(op):
    name = rng.choice(["shape", "strides"])
    value = VALUES[name]()

    def same(tensors):
        return tuple(
            dataclasses.replace(t, **{name: value}) if len(t.shape or ()) > 1 else t
            for t in tensors
        )

    return dataclasses.replace(op, inputs=same(op.inputs), outputs=same(op.outputs))


ran = refused = 0
for _ in range(int(sys.argv[1])):
    graph, problem = gradient(
        rng.choice([2, 4, 5]), rng.choice(["NXC", "NCX"]), outputs=rng.choice([1, 3])
    )
    (op,) = graph.ops
    for _ in range(rng.randrange(3)):
        op = rng.choice([changed, changed, replaced_everywhere])(op)
    ops = rng.choice([(op,), (op,), (op, op), (op, graph.ops[0])])
    graph = Graph(ops)
    for act in (graph.partitions, graph.compile, graph.__str__):
        try:
            result = act()
        except (ValueError, onedsl.UnsupportedError):
            refused += 1
            continue
        if act == graph.compile:
            try:
                result(**inputs_of(problem))
                ran += 1
            except (ValueError, TypeError):
                refused += 1
print(ran, refused)
