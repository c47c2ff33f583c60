"""Run the examples of rows of the table of oneDNN's defects, and print a line of what oneDNN does.

Usage: python defect.py NAME... Calls the core, because the package refuses such graphs. Prints
"refused", "exception" (another one than oneDNN's own), "wrong", "right" or "crash". Each example
runs in a forked child. An alarm ends it, too, because a corrupted heap may also hang.
"""

import dataclasses
import os
import signal
import sys

import numpy as np
from helpers import even_problem, values_of, with_tensors

import onedsl
from onedsl import _core, testing
from onedsl.graph import Graph
from onedsl.graph.compiled_graph import ops_to_core, tensors_to_core
from onedsl.runtime import onednn
from onedsl.tensors.arrays import new_array


def gradient(
    shape=(8, 4, 5, 16), dtype="f32", stats="f32", gamma=True, outputs=3, data_format="NXC"
):
    spec = onedsl.TensorSpec(shape, dtype)
    op = onedsl.BatchNormTrainingBackward(1e-5, data_format)
    (op,) = op.graph(spec, stats_dtype=stats, gamma=gamma).ops
    return dataclasses.replace(op, outputs=op.outputs[:outputs])


def forward(shape=(8, 4, 5, 16), inputs=5, gamma=True):
    (op,) = onedsl.BatchNormForwardTraining(1e-5).graph(onedsl.TensorSpec(shape), gamma=gamma).ops
    return dataclasses.replace(op, inputs=op.inputs[:inputs])


EXAMPLES = {
    "six dimensions": lambda: gradient((2, 3, 4, 5, 5, 16)),
    "NXC of rank 2 or 3": lambda: gradient((64, 16)),
    "forward of rank 2 or 3": lambda: forward((64, 16)),
    "three outputs without gamma": lambda: gradient(gamma=False),
    "forward without beta": lambda: forward(inputs=4),
    "two outputs": lambda: gradient(outputs=2),
    "diff_src alone": lambda: gradient(outputs=1),
    "16-bit statistics": lambda: gradient(dtype="bf16", stats="bf16"),
    "strided statistics": lambda: with_tensors(gradient(), gamma={"strides": (2,)}),
    "empty tensors of several strides": lambda: with_tensors(
        gradient((0, 17), data_format="NCX"), diff_src={"strides": (24, 1)}
    ),
    "empty src in the gradient": lambda: gradient((0, 4, 5, 16)),
    "empty src in the forward pass": lambda: forward((0, 4, 5, 16)),
    "no bf16 kernel": lambda: gradient(dtype="bf16"),
    "no f16 kernel": lambda: gradient(dtype="f16"),
}


def arrays_of(graph):
    """Return random inputs of a graph of one op by name, with its strides."""
    (op,) = graph.ops
    src = op.inputs[0]
    statistics = op.inputs[-1].dtype
    options = {"data_format": op.data_format}
    problem = even_problem(src.shape, src.dtype, statistics, **options)
    values = values_of(problem)
    inputs = {name: new_array(tensor) for name, tensor in graph.inputs.items()}
    for name, array in inputs.items():
        array[...] = values[name]
    return inputs


def is_right(op, inputs, results, **options):
    """Return whether the results by name are those of the documentation."""
    options |= {"epsilon": op.attrs.get("epsilon"), "data_format": op.data_format}
    if op.kind == "BatchNormTrainingBackward":
        if len(op.outputs) == 1:
            inputs = {name: array for name, array in inputs.items() if name != "gamma"}
        expected = testing.batch_norm_backward(**inputs, **options)
    else:
        expected = testing.batch_norm_forward_training(**inputs, **options)
    tolerance = 3 * testing.TOLERANCES[op.inputs[0].dtype]
    return all(
        testing.relative_l2(array, getattr(expected, name)) <= tolerance if array.size else True
        for name, array in results.items()
    )


def run(op):
    """Return what the core and oneDNN do with an op."""
    graph = Graph((op,))
    sides = tensors_to_core(op.inputs), tensors_to_core(op.outputs)
    try:
        compiled = onednn.compile_graph(ops_to_core((op,)), *sides, {}, _core.max_threads())
    except onedsl.OneDNNError as error:
        own = error.status in ("out_of_memory", "runtime_error")
        return "exception" if own else "refused"
    inputs = arrays_of(graph)
    results = {name: new_array(tensor) for name, tensor in graph.outputs.items()}
    for array in results.values():
        array[...] = 7
    arrays = *inputs.values(), *results.values()
    assert compiled.run(arrays, [None] * len(arrays)) == _core.max_threads()
    return "right" if is_right(op, inputs, results) else "wrong"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        if os.fork() == 0:
            signal.alarm(60)
            with np.errstate(all="ignore"):
                print(run(EXAMPLES[name]()), flush=True)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.wait()[1])
        assert status <= 0, name
        if status < 0:
            print("crash", flush=True)
