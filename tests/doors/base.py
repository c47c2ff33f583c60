"""The base class of the doors."""

import importlib.util
from collections.abc import Mapping
from itertools import groupby
from typing import Any

import numpy as np
from cases.calls import Call

FORWARD = "BatchNormForwardTraining", "BatchNormForwardTraining and activation"
GRADIENT = "BatchNormTrainingBackward", "activation's gradient and BatchNormTrainingBackward"
"""The operations in run records, without and with an activation."""
STEPS = 1, 5, 7, 11, 13, 17, 19, 23, 29, 37, 43, 53, 61, 73, 89, 101, 131, 173, 211, 307, 401, 809
"""Steps through lists of calls. Without a common divisor with the number of problems, so that each
problem has each dtype and format (`test_steps_leave_no_problem_out`)."""


class Door:
    """A way to call onedsl."""

    name = ""
    library = ""
    """The optional package that it needs."""
    backend: Any = "auto"
    same_bits: tuple[str, ...] = ()
    """The operators whose results have the bits of those of NumPy's arrays."""
    limit = 5000
    """How many calls of an operator a law tests at most."""
    most = limit
    """The same for all doors, by the option --calls of pytest."""
    is_row_major = False
    """Whether the library's arrays have no strides."""
    of_batch = False
    """Whether gradients are computed with the statistics of src, not with given ones."""
    threads = ""
    """Why numbers of OpenMP's threads are not tested, or an empty string."""
    has_options = False
    """Whether calls have the arguments `out` and those that request outputs."""
    errors: tuple[type[Exception], ...] = (TypeError, ValueError)
    """What an invalid call raises."""
    has_words = False
    """Whether messages.json has the words of these errors."""
    accepted: Mapping[str, str] = {}
    """The faults that are none here, and why."""

    def __init__(self) -> None:
        self.written: list[tuple[Any, bytes]] = []
        """The arrays that the last call writes to, with their bytes before the call."""

    def __str__(self) -> str:
        return self.name

    @property
    def is_available(self) -> bool:
        """Whether the package is installed."""
        return not self.library or importlib.util.find_spec(self.library) is not None

    def sample(self, calls: list[Call]) -> list[Call]:
        """Return the calls that this door makes in the tests of a law, at most `limit`."""
        chosen, limit = [], min(self.limit, self.most)
        for _, group in groupby(calls, lambda call: call.target.cls):
            of_operator = [*group]
            fitting = (step for step in STEPS if step * limit >= len(of_operator))
            step = next(fitting, len(of_operator))
            chosen += of_operator[::step]
        return chosen

    def reason_against(self, call: Call) -> str:
        """Return why this door does not make a call in the tests, or an empty string."""
        if (call.out or call.requested) and not self.has_options:
            return "It has no arguments for outputs."
        return self.accepted.get(call.fault) or self.unsupported(call)

    def unsupported(self, call: Call) -> str:
        """Return why this door cannot make a call, or an empty string."""
        return ""

    def runs_here(self, call: Call) -> bool:
        """Return whether the CPU of this machine supports the call."""
        return True

    def results(self, call: Call) -> set[str]:
        """Return the names of the results that the door returns."""
        return call.results

    def run(self, call: Call) -> dict[str, Any]:
        """Make a call and return its results by their names in the reference, as NumPy arrays."""
        raise NotImplementedError

    def expected(self, call: Call) -> Any:
        """Return the results by the reference."""
        return call.expected_of_batch if self.of_batch and not call.is_forward else call.expected

    def statistics(self, call: Call) -> str:
        """Return the dtype of the statistics among the results."""
        return call.stats

    def strides(self, call: Call) -> tuple[int, ...]:
        """Return the strides of the tensors among the results."""
        return np.empty_like(call.values["src"], order="C" if self.is_row_major else "K").strides

    def operations(self, call: Call) -> list[str]:
        """Return the operations of the run records of a call."""
        raise NotImplementedError

    def undifferentiable(self, call: Call) -> str:
        """Return why the gradients cannot be differentiated, or an empty string."""
        return "The gradients cannot be differentiated."

    def between_passes(self, call: Call) -> list[str]:
        """Return the tensors that a program can change before the gradient."""
        return []

    def run_with_change(self, call: Call, name: str) -> dict[str, Any] | None:
        """Change a tensor before the gradient, and return the results, or None if that raises."""
        raise NotImplementedError

    def second_derivatives(self, call: Call, weights: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the gradient of a weighted sum of the gradients, by the inputs' names."""
        raise NotImplementedError

    def _writes(self, *arrays: Any) -> None:
        """Note the arrays that a call is about to write to."""
        self.written = [(array, array.tobytes()) for array in arrays]

    def _operations_of(self, call: Call, *, both: bool) -> list[str]:
        """Return the operation of a pass, or of both passes for a gradient."""
        has_activation = call.activation is not None
        forward = [FORWARD[has_activation]] * (call.is_forward or both)
        return forward + [GRADIENT[has_activation]] * (not call.is_forward)
