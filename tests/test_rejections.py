"""Reasons why the core rejects a call: which faults have them, and those of one door alone."""

import functools
import re

import helpers
import pytest
from cases.faults import FAULTS

import onedsl
from onedsl import _core, testing
from onedsl.runtime import onednn

OP = onedsl.BatchNormTrainingBackward(0.02345)  # whose graphs no other test compiles
PROBLEM = testing.random_problem((4, 5, 6))


def totals_of_fewer_channels():
    return OP.apply(OP.reduce(*(array[..., :-1].copy() for array in PROBLEM[:4])), *PROBLEM)


def totals_of_a_part():
    parts = [*(array[:1] for array in PROBLEM[:2]), *PROBLEM[2:4]]
    return OP.apply(OP.reduce(*parts), *PROBLEM)


def ignored_gamma():
    return OP(*PROBLEM, outputs="diff_src")


def changed_while_compiled():
    """Resize the arrays while oneDNN compiles the graph of the call, as another thread could.

    Regression: oneDNN ran the graph of the larger arrays, beyond the memory of the new ones.
    """
    src, diff_dst, *statistics = (array.copy() for array in PROBLEM[:4])
    compile_graph = onednn.compile_graph

    def compile_and_resize(*arguments):
        compiled = compile_graph(*arguments)
        for array in (src, diff_dst):
            array.resize((1, *src.shape[1:]), refcheck=False)
        return compiled

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onednn, "compile_graph", compile_and_resize)
        return OP(src, diff_dst, *statistics, backend="onednn")


def cut_storage():
    """Pass a tensor of PyTorch whose storage was made too small."""
    torch = pytest.importorskip("torch", reason="torch is optional, and not installed here")
    src, *rest = (torch.from_numpy(array).clone() for array in PROBLEM)
    src.untyped_storage().resize_(src.nbytes - 4)
    return OP(src, *rest)


def one_value_per_channel():
    torch = pytest.importorskip("torch", reason="torch is optional, and not installed here")
    import onedsl.torch  # noqa: F401 - registers the operator

    src = torch.ones(1, 3)
    return torch.ops.onedsl.batch_norm_training(src, None, None, None, 1e-5, None, None)


CALLS = {
    "few_values": one_value_per_channel,
    "graph": changed_while_compiled,
    "ignored": ignored_gamma,
    "memory": cut_storage,
    "totals_channels": totals_of_fewer_channels,
    "totals_count": totals_of_a_part,
}


CHECKED_BY_PYTHON = "epsilon", "absent", "not_an_array", "outputs"


def test_every_reason_has_a_fault():
    text = (helpers.ROOT / "csrc/core/check.hpp").read_text(encoding="utf-8")
    names = re.search(r"names = \{(.*?)\}", text, re.DOTALL)[1]
    found = {fault.reason for fault in FAULTS.values() if fault.reason}
    assert found | {*CALLS, *CHECKED_BY_PYTHON} == {*re.findall(r'"(\w+)"', names)}


def test_reasons_for_which_python_rejects_a_call_first():
    src, mean, core = PROBLEM.src, PROBLEM.mean, OP._core
    assert core.run(("src", *PROBLEM[1:]), True, None).reason == "not_an_array"
    assert core.run(PROBLEM, True, (src.copy(),)).reason == "outputs"
    tensor, vector = (True, "f32", src.shape), (True, "f32", mean.shape)
    why = functools.partial(_core.why_torch_unsupported, "training_backward")
    assert why([tensor, tensor, None, vector, None], 1.0) == "absent statistics"
    assert why([tensor, tensor, vector, vector, None], 0.0).startswith("an eps that is not pos")


@pytest.mark.parametrize("reason", CALLS)
@pytest.mark.filterwarnings("error::onedsl.GammaIgnoredWarning")
def test_a_fault_of_one_door_is_an_error(reason, says):
    with pytest.raises((TypeError, ValueError, Warning)) as caught:
        CALLS[reason]()
    says(caught.value)
