"""The table of oneDNN's defects: each row against the loaded oneDNN, and what the package does."""

import dataclasses

import helpers
import numpy as np
import pytest
from programs.defect import EXAMPLES

import onedsl
from onedsl import testing
from onedsl.graph import Graph
from onedsl.graph._defects import DEFECTS, defects_of
from onedsl.runtime import onednn

LOADED = onednn.version()
BY_NAME = {defect.name: defect for defect in DEFECTS}


def test_each_row_has_an_example():
    assert set(BY_NAME) == set(EXAMPLES)
    oldest = min(version for defect in DEFECTS for version in defect.seen_in)
    for defect in DEFECTS:
        assert list(defect.seen_in) == sorted(defect.seen_in)
        assert oldest in (defect.seen_in[0], defect.right_in), "results that are right would warn"


# The outcomes of defect.py, by the effects of the rows.
FOUND = {
    "crash": ("crash", "exception", "wrong"),
    "wrong": ("wrong",),
    "refused": ("refused",),
}
# On a CPU without a bf16 kernel, no example shows what oneDNN does with 16-bit statistics.
SHOWN = sorted(set(EXAMPLES) - ({"16-bit statistics"} if helpers.missing_isa("bf16") else set()))


@pytest.fixture(scope="module")
def outcomes():
    """What the loaded oneDNN does with each example, in a child process, which may crash."""
    found = {}
    for environment, has_kernels in ((None, True), (helpers.ON_AVX2, False)):
        names = [name for name in SHOWN if ("kernel" not in name) == has_kernels]
        child = helpers.run_script("defect.py", *names, environment=environment)
        found |= zip(names, child.stdout.splitlines(), strict=True)
    return found


@pytest.mark.parametrize("name", SHOWN)
def test_each_row_is_what_the_loaded_onednn_does(name, outcomes):
    """A row must change if a listed version does not do it."""
    defect = BY_NAME[name]
    if defect.is_in(LOADED) is False:
        others = [d.effect for d in defects_of(EXAMPLES[name]())]  # of the same example
        assert outcomes[name] in ("right", *others)
    else:
        unknown = () if LOADED in defect.seen_in else ("right",)
        assert outcomes[name] in (*FOUND[defect.effect], *unknown)


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_row_is_reported(name, monkeypatch):
    """compile refuses or the call warns, print(graph) says why, and repaired() avoids it.

    As on a CPU, and with a version of oneDNN, that has the defect and no other one.
    """
    defect = BY_NAME[name]
    version = defect.seen_in[-1]
    monkeypatch.setattr(onednn, "version", lambda: version)
    monkeypatch.setattr(onednn, "is_of_intel", lambda: False)
    missing = "avx512_core" if "kernel" in name else ""
    monkeypatch.setattr(onednn, "missing_isa", lambda _: missing)
    op = EXAMPLES[name]()
    graph = Graph((op,))
    assert defect in defects_of(op)
    message = defect.message(version)
    if defect.effect == "wrong":
        assert message in graph.compile().defects
    else:
        with pytest.raises(onedsl.UnsupportedError) as caught:
            graph.compile()
        assert any(d.message(version) in str(caught.value) for d in defects_of(op))
        assert caught.value.status == "unimplemented"
    # Newer versions refuse to partition some graphs.
    assert message in str(graph) or (LOADED > (3, 2, 0) and "no partitions: " in str(graph))
    if defect.repair:
        repaired = graph.repaired()
        assert repaired.changes
        assert [d.name for op in repaired.ops for d in defects_of(op) if d.name == name] == []
    else:
        with pytest.raises(onedsl.UnsupportedError):
            graph.repaired().compile()


def test_a_defect_of_some_builds(monkeypatch):
    """oneDNN 3.2.0 of Intel's compiler computes empty tensors of several strides."""
    monkeypatch.setattr(onednn, "is_of_intel", lambda: True)
    assert BY_NAME["empty tensors of several strides"].is_in((3, 2, 0)) is False
    assert BY_NAME["six dimensions"].is_in((3, 2, 0)) is True


@pytest.mark.skipif(LOADED != (3, 2, 0), reason="newer versions do not write the sums")
def test_an_empty_gradient_that_is_right():
    """Regression: it was refused and warned of, because of a defect of newer versions."""
    op = onedsl.BatchNormTrainingBackward(1e-5)
    graph = op.graph(onedsl.TensorSpec((0, 4, 5, 16)))
    inputs = testing.random_problem((0, 4, 5, 16))._asdict()
    for found in (graph, graph.repaired()):
        assert found.compile().defects == ()
        results = found.compile()(**inputs)
        assert (results["diff_gamma"] == 0).all()
        assert (results["diff_beta"] == 0).all()


def test_no_repair_is_proposed_where_there_is_no_kernel(monkeypatch):
    """Regression: a repair was proposed for bf16 statistics on CPUs without a bf16 kernel."""
    monkeypatch.setattr(onednn, "missing_isa", lambda _: "avx512_core")
    for shape, gamma in (((4, 2, 2, 16), True), ((2,) * 6, False)):
        op = onedsl.BatchNormTrainingBackward(1e-5)
        graph = op.graph(onedsl.TensorSpec(shape, "bf16"), stats_dtype="bf16", gamma=gamma)
        for refused in (graph, graph.repaired()):
            with pytest.raises(onedsl.UnsupportedError, match="oneDNN has no bf16 kernel") as error:
                refused.compile()
            assert "repaired()" not in str(error.value) + str(refused)


def test_versions_that_are_not_in_the_table(monkeypatch):
    """A message names the versions that were seen, and newer ones may be tried on request."""
    gradient = EXAMPLES["three outputs without gamma"]()
    defect = BY_NAME["three outputs without gamma"]
    for version, known in (((3, 2, 0), True), ((3, 9, 1), True), ((3, 99, 0), None)):
        assert defect.is_in(version) is known
        message = defect.message(version)
        assert "seen in oneDNN 3.2.0, 3.11.0, 3.13.1, 3.13.2" in message
        number = ".".join(map(str, version))
        assert (f"; not known for the loaded {number}" in message) == (
            version not in defect.seen_in
        )
    assert BY_NAME["forward of rank 2 or 3"].is_in((3, 13, 1)) is False
    empty = BY_NAME["empty src in the gradient"]  # 3.2.0 writes the sums
    versions = ((3, 2, 0), (3, 9, 1), (3, 11, 0), (3, 12, 0), (3, 99, 0))
    assert [empty.is_in(version) for version in versions] == [False, None, True, True, None]
    assert empty.is_in((3, 1, 0)) is False
    # Regression: a defect that was seen in newer versions alone was one of older ones, too.
    assert empty._replace(right_in=None).is_in((3, 2, 0)) is None
    monkeypatch.setattr(onednn, "version", lambda: (3, 99, 0))
    with pytest.raises(onedsl.UnsupportedError, match=r"compile\(try_anyway=True\) tries it"):
        Graph((gradient,)).compile()
    with pytest.raises(onedsl.UnsupportedError, match="oneDNN 3"):  # its own message
        Graph((gradient,)).compile(try_anyway=True)
    monkeypatch.setattr(onednn, "version", lambda: (3, 13, 1))
    with pytest.raises(onedsl.UnsupportedError, match="std::out_of_range"):
        Graph((gradient,)).compile(try_anyway=True)


@pytest.mark.parametrize("rank", [*range(2, 14), 40])
@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
@pytest.mark.parametrize(
    "operator", [onedsl.BatchNormTrainingBackward, onedsl.BatchNormForwardTraining]
)
def test_no_rank_reaches_onednn_that_it_cannot_compute(operator, data_format, rank):
    """Regression: graphs of six dimensions or more corrupted the heap."""
    spec = onedsl.TensorSpec(((2,) * rank)[:13] + (1,) * (rank - 13))
    op = operator(1e-5, data_format=data_format)
    graph = op.graph(spec)
    if rank > 5:
        with pytest.raises(onedsl.UnsupportedError, match="Reshape to 4 or 5 dimensions, or"):
            graph.compile()
    if rank > 12:
        assert "no partitions" in str(graph)
        with pytest.raises(onedsl.UnsupportedError, match="at most 12 dimensions"):
            graph.partitions()
    graph.repaired().compile()


def test_the_documentation_has_each_row():
    for defect in DEFECTS:
        assert f"| {defect.what} |" in onedsl.graph.__doc__


def of_relu(shape, **changes):
    """Return the graph of a forward pass and a ReLU, with src changed."""
    graph = onedsl.BatchNormActForwardTraining(1e-5, activation="relu").graph(
        onedsl.TensorSpec(shape)
    )
    norm, relu = graph.ops
    return Graph((helpers.with_tensors(norm, src=changes), relu))


def test_graphs_of_several_ops_that_access_memory_out_of_bounds():
    """Regression: random graphs ended the process."""
    gaps = of_relu((2, 3, 4, 16), strides=(2 * 192, 64, 16, 1))
    six, empty = of_relu((2, 2, 2, 2, 2, 16)), of_relu((0, 3, 4, 16))
    relu_alone = Graph((six.ops[1],))
    for graph in (gaps, six, empty, relu_alone):
        assert "graphs of several ops must have tensors of at most 5 dim" in str(graph)
        with pytest.raises(onedsl.UnsupportedError, match="graphs of several ops must have"):
            graph.compile()
    six.repaired().compile()


def test_an_output_that_onednn_does_not_write():
    """Regression: oneDNN computes both ops together, and the tensor between them is not written."""
    graph = of_relu((2, 3, 4, 16))
    between = graph.ops[1].inputs[0].id
    with pytest.raises(onedsl.UnsupportedError, match=rf"does not write the outputs \[{between}\]"):
        dataclasses.replace(graph, names=((between, "between"),)).compile()


def not_alike(what, rank):
    """Return a graph whose tensors cannot be reshaped by the geometry of one of them."""
    shape = *(2, 16, 3, 2, 2)[: rank - 1], 16
    gradient = onedsl.BatchNormTrainingBackward(1e-5).graph(onedsl.TensorSpec(shape)).ops[0]
    forward = onedsl.BatchNormForwardTraining(1e-5).graph(onedsl.TensorSpec(shape)).ops[0]
    swapped = np.empty((16, 2, *shape[2:]), np.int8).swapaxes(0, 1).strides
    outer, *inner = gradient.inputs[0].strides
    gaps = {name: {"strides": (2 * outer, *inner)} for name in ("src", "diff_dst", "diff_src")}
    if what == "formats":
        return Graph((gradient, another(shape, "NCX")))
    if what == "shapes":
        return Graph((gradient, another((3, *shape[1:]), "NXC")))
    changed = {
        "orders": (gradient, {"diff_dst": {"strides": swapped}}),
        "orders of a forward pass": (forward, {"dst": {"strides": swapped}}),
        "gaps": (gradient, gaps),
    }
    op, tensors = changed[what]
    return Graph((helpers.with_tensors(op, **tensors),))


def another(shape, data_format):
    """Return a gradient for the same graph as one of `BatchNormTrainingBackward.graph`."""
    op = onedsl.BatchNormTrainingBackward(1e-5, data_format)
    (op,) = op.graph(onedsl.TensorSpec(shape)).ops
    ids = {name: {"id": 100 + tensor.id} for _, name, tensor in op.ports}
    return dataclasses.replace(helpers.with_tensors(op, **ids), id=1)


@pytest.mark.parametrize("rank", [3, 4, 5, 6])
@pytest.mark.parametrize(
    "what", ["orders", "orders of a forward pass", "gaps", "formats", "shapes"]
)
def test_tensors_that_are_not_alike_are_not_reshaped(what, rank):
    """The results of such graphs of rank 4: programs/random_graphs.py."""
    graph = not_alike(what, rank)
    if rank in (4, 5):
        assert graph.repaired().changes == ()
    else:
        with pytest.raises(onedsl.UnsupportedError, match="one memory order, without gaps"):
            graph.repaired()


def test_strides_of_0_in_empty_tensors():
    """Regression: oneDNN divides by them, which ended the process."""
    op = EXAMPLES["empty src in the forward pass"]()
    graph = Graph((helpers.with_tensors(op, src={"strides": (0, 80, 16, 1)}),))
    with pytest.raises(ValueError, match=r"\(src\) must have a stride .* got \(0, 80, 16, 1\)"):
        graph.compile()
