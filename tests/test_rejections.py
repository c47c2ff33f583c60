"""What the doors say to a call with a fault: the exception, its words, and nothing is written."""

import json

import helpers
import numpy as np
import pytest
from cases.rejections import FAULTS, OF_ONE_DOOR, OUT, arguments, outputs, reasons
from conftest import MESSAGES
from fuzz.arrays import to_torch

import onedsl

INPUTS = "src", "diff_dst", "mean", "variance", "gamma", "beta", "residual", "dst"


def by_numpy(a):
    op = onedsl.BatchNormActTrainingBackward(a["epsilon"], activation=a["activation"])
    options = {"diff_residual": a["diff_residual"], OUT: a[OUT]}
    return op(*(a[name] for name in INPUTS), **options)


def by_torch_op(a):
    torch = pytest.importorskip("torch", reason="torch is optional, and not installed here")
    import onedsl.torch  # noqa: F401 - registers the operator

    t = {n: to_torch(a[n]) if isinstance(a[n], np.ndarray) else a[n] for n in INPUTS}
    t |= {n: t[n].movedim(-1, 1) for n in INPUTS if t[n] is not None and t[n].ndim > 1}
    return torch.ops.onedsl.batch_norm_training_backward(
        *(t["diff_dst"], t["src"], t["mean"], t["variance"], t["gamma"], t["gamma"]),
        *(t["beta"], t["residual"], t["dst"], a["activation"], None),
    )


def by_jax(a):
    jax = pytest.importorskip("jax", reason="jax is optional, and not installed here")
    import onedsl.jax

    with jax.enable_x64(True):
        src, diff_dst, mean, variance, gamma = (
            jax.numpy.asarray(a[name]) if isinstance(a[name], np.ndarray) else a[name]
            for name in INPUTS[:5]
        )
        return onedsl.jax.batch_norm_backward(
            src, diff_dst, mean, variance, gamma, epsilon=a["epsilon"]
        )


# The faults that a door cannot have: results are the operator's, and arrays are converted first.
OF_OUT = {"layout", "outputs", "not_aligned", "read_only", "overlap"}
OF_ACTIVATION = {"all_or_none", "alternatives", "one_of", "activation"}
DOORS = {
    "numpy": (by_numpy, set()),
    "torch_op": (by_torch_op, OF_OUT | {"not_an_array", "one_of", "epsilon"}),
    "jax": (by_jax, OF_OUT | OF_ACTIVATION | {"size"}),
}
CASES = [
    (door, reason) for door, (_, impossible) in DOORS.items() for reason in FAULTS
    if reason not in impossible
]  # fmt: skip
# The doors that accept a call that another one rejects.
ACCEPTED = {("numpy", "few_values"), ("jax", "few_values")}


def test_every_reason_has_a_fault():
    assert sorted([*FAULTS, *OF_ONE_DOOR]) == sorted(reasons())


def test_every_message_is_of_a_test():
    for name in json.loads(MESSAGES.read_text(encoding="utf-8")):
        file, test = name.split("::")
        text = (helpers.TESTS / file).read_text(encoding="utf-8")
        assert f"def {test.partition('[')[0]}(" in text, name


@pytest.mark.parametrize(("door", "reason"), CASES)
def test_a_fault_is_an_error_and_nothing_is_written(door, reason, says):
    valid = arguments()
    call, _ = DOORS[door]
    call(valid)
    given = valid | FAULTS[reason](valid)
    if (door, reason) in ACCEPTED:
        call(given)
        return
    given[OUT] = given[OUT] or (tuple(outputs()) if door == "numpy" else None)
    arrays = [v for v in (*given.values(), *(given[OUT] or ())) if isinstance(v, np.ndarray)]
    small = [array for array in arrays if array.size < 1000]
    before = [array.tobytes() for array in small]
    with pytest.raises((TypeError, ValueError, RuntimeError)) as caught:
        call(given)
    assert [array.tobytes() for array in small] == before
    says(caught.value)


@pytest.mark.parametrize("reason", OF_ONE_DOOR)
@pytest.mark.filterwarnings("error::onedsl.GammaIgnoredWarning")
def test_a_fault_of_one_door_is_an_error(reason, says):
    if reason == "memory":
        pytest.importorskip("torch", reason="torch is optional, and not installed here")
    with pytest.raises((TypeError, ValueError, Warning)) as caught:
        OF_ONE_DOOR[reason]()
    says(caught.value)
