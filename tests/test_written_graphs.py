"""oneDNN's graphs as they were written: `op.graph`, `Graph.partitions` and `Graph.compile`.

The laws have the results of repaired graphs of one call.
"""

import dataclasses
import pickle
import re

import helpers
import numpy as np
import pytest
from fuzz.judge import OPENMP
from programs import defect

import onedsl
from onedsl import testing
from onedsl.graph import Graph, GraphOp
from onedsl.graph._defects import defects_of
from onedsl.runtime import onednn


def gradient(**options):
    """Return the graph and the random problem of a gradient. Options: see defect.py."""
    op = defect.gradient(**options)
    src = op.inputs[0]
    problem = helpers.even_problem(src.shape, src.dtype, data_format=op.data_format)
    return Graph((op,)), problem


@helpers.types
@helpers.formats
@pytest.mark.parametrize("gamma", [True, False])
@pytest.mark.parametrize("outputs", ["all", "diff_src"])
def test_graphs_and_their_json_are_what_was_asked_for(dtype, stats, data_format, gamma, outputs):
    spec = onedsl.TensorSpec((8, 40, 30, 96), dtype, (40, 1, 320, 9600))
    op = onedsl.BatchNormTrainingBackward(1.5e-4, data_format)
    graph = op.graph(spec, stats_dtype=stats, gamma=gamma, outputs=outputs)
    (node,) = graph.ops
    assert node.kind == "BatchNormTrainingBackward"
    assert node.attrs == {"epsilon": 1.5e-4, "data_format": data_format}
    names = ["src", "diff_dst", "mean", "variance", "gamma"][: 4 + gamma]
    names += ["diff_src", "diff_gamma", "diff_beta"][: 3 if outputs == "all" else 1]
    assert [name for _, name, _ in node.ports] == names
    channels = 96 if data_format == "NXC" else 40
    for _, name, tensor in node.ports:
        described = tensor.shape, tensor.dtype, tensor.strides
        if name in ("src", "diff_dst", "diff_src"):
            assert described == (spec.shape, dtype, spec.strides)
        else:
            assert described == ((channels,), stats, (1,))
    assert graph.changes == ()
    assert Graph.from_json(graph.to_json()) == graph
    assert helpers.operator_of(graph.to_json()) == op


def test_the_callers_memory_is_used():
    graph, problem = gradient()
    compiled = graph.compile()
    assert compiled.partitions[0].inputs == graph.ops[0].inputs
    expected = compiled(**problem._asdict())
    out = {name: np.full_like(array, 7) for name, array in expected.items()}
    got = compiled(**problem._asdict(), out=out)
    for name, array in got.items():
        assert array is out[name]
        np.testing.assert_array_equal(array, expected[name])
    in_place = problem.diff_dst.copy()
    arrays = problem._asdict() | {"diff_dst": in_place}
    got = compiled(**arrays, out={"diff_src": in_place})
    assert got["diff_src"] is in_place
    np.testing.assert_array_equal(in_place, expected["diff_src"])
    np.testing.assert_array_equal(got["diff_beta"], expected["diff_beta"])


def test_padded_strides_from_json():
    """A graph file may describe memory with gaps."""
    graph, problem = gradient()
    src = graph.inputs["src"]
    shape, padded = src.shape, {"strides": (*(2 * step for step in src.strides[:-1]), 1)}
    op = helpers.with_tensors(graph.ops[0], src=padded, diff_dst=padded, diff_src=padded)
    graph = Graph.from_json(Graph((op,)).to_json())
    wide = np.zeros((*shape[:-1], 32), np.float32)
    src, between, diff_dst = wide[..., :16], wide[..., 16:], wide.copy()[..., :16]
    src[...], diff_dst[...] = problem.src, problem.diff_dst
    arrays = problem._asdict() | {"src": src, "diff_dst": diff_dst}
    compiled = graph.compile()
    assert compiled(**arrays)["diff_src"].strides == src.strides
    got = compiled(**arrays, out={"diff_src": between})
    np.testing.assert_array_equal(src, problem.src)
    expected = testing.batch_norm_backward(*problem, epsilon=1e-5)
    assert testing.relative_l2(got["diff_src"], expected.diff_src) < 2e-6


SIXTEEN = np.zeros(16, np.float32)
INVALID = [
    ({"gamma": None}, None, TypeError),
    ({"beta": 1}, None, TypeError),
    ({"src": 3}, None, TypeError),
    ({"mean": np.zeros((1, 16), "f")}, None, ValueError),
    ({"mean": np.zeros(16, "e")}, None, TypeError),
    ({"mean": np.zeros(32, "f")[::2]}, None, ValueError),
    ({}, {"diff_beta": helpers.unaligned(SIXTEEN)}, ValueError),
    ({}, {"diff_beta": helpers.read_only(SIXTEEN)}, ValueError),
    ({}, {"dst": 0}, TypeError),
    ({}, {0: 0}, TypeError),
    ({}, (1, 2, 3), TypeError),
    ({}, {"diff_beta": None}, TypeError),
    ({"mean": SIXTEEN}, {"diff_gamma": SIXTEEN}, ValueError),
    ({}, {"diff_gamma": SIXTEEN, "diff_beta": SIXTEEN}, ValueError),
]


def test_invalid_arguments(says):
    graph, problem = gradient()
    compiled, valid = graph.compile(), problem._asdict()
    for change, out, error in [*INVALID, ({}, {"diff_src": problem.src}, ValueError)]:
        with pytest.raises(error) as caught:
            compiled(**{k: v for k, v in (valid | change).items() if v is not None}, out=out)
        says(caught.value)
    with pytest.raises(TypeError) as caught:
        compiled(*problem)
    says(caught.value)


def test_defects_warn_at_the_line_of_the_caller():
    graph, problem = gradient(outputs=1)
    compiled = graph.compile()
    with pytest.warns(onedsl.OneDNNDefectWarning, match="as if mean and variance were const") as w:
        compiled(**problem._asdict())
    assert w[0].filename == __file__
    assert len(compiled.defects) == 1
    assert gradient()[0].compile().defects == ()


def mixed_types(**options):
    """Return a graph that oneDNN refuses, and that is in no row of the table of defects."""
    (op,) = gradient(**options)[0].ops
    return Graph((helpers.with_tensors(op, diff_dst={"dtype": "bf16"}),))


@pytest.mark.parametrize(
    ("function", "act", "channels"),
    [("compile_graph", Graph.compile, 23), ("graph_partitions", Graph.partitions, 25)],
)
def test_a_refused_graph_reaches_onednn_once(monkeypatch, function, act, channels):
    """oneDNN leaks memory for each attempt."""
    graph, attempts = mixed_types(shape=(8, 4, 5, channels)), []  # which no other test compiles
    attempt = getattr(onednn, function)
    monkeypatch.setattr(onednn, function, lambda *args: attempts.append(1) or attempt(*args))
    errors = []
    for _ in range(2):
        with pytest.raises(onedsl.UnsupportedError, match="could not add op") as caught:
            act(graph)
        errors.append((str(caught.value), caught.value.status))
    assert errors[0] == errors[1]
    assert errors[0][1] == "invalid_graph_op"
    assert len(attempts) == 1
    assert "no partitions: oneDNN 3." in str(graph)


def test_a_refused_call_reaches_onednn_once(monkeypatch):
    """Regression: each call leaked memory of oneDNN. A kept exception would keep tracebacks."""
    attempts = []

    def refuse(*_):
        attempts.append(1)
        raise onedsl.OneDNNError("no such kernel", "unimplemented")

    monkeypatch.setattr(onednn, "compile_graph", refuse)
    op, problem = onedsl.BatchNormTrainingBackward(0.4321), testing.random_problem((8, 16))
    errors = []
    for _ in range(2):
        with pytest.raises(onedsl.UnsupportedError, match="no such kernel") as caught:
            op(*problem, backend="onednn")
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert len(attempts) == 1


FORWARD, BACKWARD = onedsl.BatchNormActForwardTraining, onedsl.BatchNormActTrainingBackward
RELU = {
    "relu": (FORWARD(1e-5, activation="relu"), {}),
    "addition": (FORWARD(1e-5, clip=1.5, activation="relu"), {"residual": True}),
    "backward": (BACKWARD(1e-5, activation="relu"), {}),
    "both gradients": (BACKWARD(1e-5, clip=1.5, activation="relu"), {"diff_residual": True}),
}


@pytest.mark.parametrize("repaired", [False, True])
@pytest.mark.parametrize("shape", [(8, 4, 4, 16), (8, 16), (2, 3, 2, 4, 16)])
@pytest.mark.parametrize("name", RELU)
def test_graphs_of_several_ops(name, shape, repaired):
    """They take and return the arrays of the operator, by the names of its ports.

    oneDNN computes such graphs correctly up to five dimensions.
    """
    op, options = RELU[name]
    graph = op.graph(onedsl.TensorSpec(shape), **options)
    graph = graph.repaired() if repaired else graph
    if len(shape) < 4 and not repaired and defects_of(graph.ops[-1]) + defects_of(graph.ops[0]):
        with pytest.raises(onedsl.UnsupportedError, match="fewer than 4 dimensions"):
            graph.compile()
        return
    values = helpers.values_of(helpers.even_problem(shape))
    arrays = {name: values[name] for name in graph.inputs}
    if "diff_dst" in arrays:
        expected = op(**arrays, beta=values["beta"], **options)
    else:
        expected = op(**arrays)
    got = graph.compile()(**arrays)
    assert set(got) == {name for name, array in expected._asdict().items() if array is not None}
    for output, array in got.items():
        assert testing.relative_l2(array, getattr(expected, output)) < 3e-6
    # The format of files has no names. It has the ids of the outputs.
    back = Graph.from_json(graph.to_json())
    assert len(back.outputs) == len(graph.outputs)
    assert back.ops == graph.ops


IN_NXC, IN_NCX = (onedsl.BatchNormTrainingBackward(1e-5, f) for f in ("NXC", "NCX"))
OF_FORWARD = onedsl.BatchNormForwardTraining(1e-5, data_format="NCX")
DROPPED = "diff_gamma and diff_beta computed and dropped"


@pytest.mark.parametrize(
    ("op", "shape", "options", "changes"),
    [
        (IN_NXC, (7, 1, 3, 96), {"gamma": False, "outputs": "diff_src"},
         (DROPPED, "gamma = 1 added", "reshaped to 1x1x21x96")),
        (IN_NCX, (7, 16, 3, 1), {"stats_dtype": "bf16"},
         ("statistics converted from bf16 to f32", "reshaped to 1x1x21x16 in NXC")),
        (OF_FORWARD, (7, 16, 3, 1), {"gamma": False}, ("gamma = 1 added", "beta = 0 added")),
        (IN_NCX, (7, 16, 3, 1), {"outputs": "diff_src"},
         ("gamma = 1 instead of the gamma that the op ignores", DROPPED)),
    ],
)  # fmt: skip
def test_changes_of_repaired_graphs_are_listed(op, shape, options, changes):
    """Regression: with 3 or 7 threads, the rows have another shape: each has an equal part."""
    spec = onedsl.TensorSpec(shape)
    if "stats_dtype" in options:
        spec = onedsl.TensorSpec(shape, "bf16", strides=(48, 1, 16, 16))
    with OPENMP.limit(limits=2):
        graph = op.graph(spec, **options).repaired()
    assert graph.changes == changes
    assert str(graph).splitlines()[-1] == f"changed by onedsl: {'; '.join(changes)}"


def test_graphs_of_several_ops_do_not_run_in_place():
    """Another op may read the input later."""
    op, options = RELU["relu"]
    graph = op.graph(onedsl.TensorSpec((8, 4, 4, 16)), **options)
    values = helpers.values_of(testing.random_problem((8, 4, 4, 16)))
    with pytest.raises(ValueError, match=r"out\['dst'\] must not overlap src"):
        graph.compile()(**{n: values[n] for n in graph.inputs}, out={"dst": values["src"]})


def test_names_that_are_another_port_with_an_id():
    """Regression: src of tensor 1 and src_1 of the op Add were one name."""
    src = gradient()[0].ops[0].inputs[0]
    tensors = [dataclasses.replace(src, id=i) for i in range(5)]
    relu = GraphOp(0, "", "ReLU", {}, (tensors[1],), (tensors[2],))
    other = GraphOp(1, "", "ReLU", {}, (tensors[0],), (tensors[3],))
    add = GraphOp(2, "", "Add", {}, (tensors[2], tensors[4]), (dataclasses.replace(src, id=5),))
    graph = Graph((relu, other, add))
    assert {name: tensor.id for name, tensor in graph.inputs.items()} == {
        "src_1_1": 1, "src_0": 0, "src_1": 4
    }  # fmt: skip
    assert list(graph.outputs) == ["dst_3", "dst_5"]


def test_a_log_handler_that_raises(caplog, monkeypatch):
    """Regression: autograd was not told of results that were written before a handler raised."""
    torch = pytest.importorskip("torch")

    def raises(*_):
        raise KeyboardInterrupt

    graph, problem = gradient()
    compiled = graph.compile()
    out = {"diff_beta": torch.zeros(16)}
    version = out["diff_beta"]._version
    with onedsl.verbose(), monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(caplog.handler, "emit", raises)
        compiled(**problem._asdict(), out=out)
    assert out["diff_beta"]._version > version


@pytest.mark.parametrize("rank", [64, 65, 301])
def test_geometry_of_a_tensor_of_many_axes(rank):
    """Regression: more than 64 axes were written out of bounds, which ended the process."""
    (op,) = gradient(data_format="NCX")[0].ops
    shape, strides = (0, 2) + (1,) * (rank - 2), (1,) * rank
    src = dataclasses.replace(op.inputs[0], shape=shape, strides=strides)
    op = dataclasses.replace(op, inputs=(src, *op.inputs[1:]))
    assert (op.geometry is None) == (rank > 64)
    requirement = "have 2 to 64 dimensions" if rank > 64 else "diff_dst.* must have shape"
    with pytest.raises(ValueError, match=requirement):
        Graph((op,)).repaired()


def test_repair_of_a_graph_with_the_largest_id():
    """Regression: the tensors that were added had the id 2^63."""
    graph, problem = gradient(gamma=False)
    graph = Graph((helpers.with_tensors(graph.ops[0], src={"id": 2**63 - 1}),))
    repaired = graph.repaired()
    assert repaired.changes[0] == "gamma = 1 added"
    inputs = {name: a for name, a in problem._asdict().items() if name != "gamma"}
    assert set(repaired.compile()(**inputs)) == set(graph.outputs)


def test_compiled_graphs_are_pickled_as_their_graphs():
    """Regression: the error named a private class."""
    for each in (gradient()[0], gradient()[0].repaired()):
        assert pickle.loads(pickle.dumps(each)) == each
    graph, problem = gradient()
    compiled = graph.compile(try_anyway=True)
    same = pickle.loads(pickle.dumps(compiled))
    assert same.graph == graph
    make, _ = same.__reduce__()
    assert make.keywords == {"try_anyway": True}
    for a, b in zip(*(c(**problem._asdict()).values() for c in (same, compiled)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_only_repaired_sets_what_it_changed():
    """Regression: other values made a call access memory out of bounds, or write its inputs."""
    graph, _ = gradient(gamma=False)
    repaired = graph.repaired()
    for name in ("changes", "constants", "requested"):
        assert getattr(repaired, name)
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            Graph(graph.ops, **{name: getattr(repaired, name)})
        with pytest.raises(ValueError, match=name):
            dataclasses.replace(graph, **{name: getattr(repaired, name)})
    plain = dataclasses.replace(repaired, ops=graph.ops)
    assert plain == graph


def test_random_graphs():
    child = helpers.run_script("random_graphs.py", "100")
    # Half of the graphs are bf16, which oneDNN does not support without AVX-512.
    fewest_right = 30 if helpers.missing_isa("bf16") is None else 15
    for how in ("written", "repaired"):
        pattern = rf"{how}: (\d+) right, .*, (\d+) refused, (\d+) not judged"
        counts = re.search(pattern, child.stdout)
        assert counts
        assert int(counts[1]) > fewest_right
        assert int(counts[2]) > 25
        assert int(counts[3]) < 10
