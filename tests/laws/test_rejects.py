"""An invalid call raises, writes nothing, and says what is wrong."""

from dataclasses import replace

import pytest
from cases.calls import bytes_of
from cases.faults import FAULTS
from cases.laws import calls_under, law
from doors import DOORS

from onedsl.operators.validation import RejectedCall


@law("rejects")
def test_an_invalid_call_raises_and_writes_nothing(door, calls):
    for call in calls:
        inputs = replace(call, fault="").values
        before = bytes_of(inputs)
        door.written = []
        with pytest.raises(door.errors):
            door.run(call)
            pytest.fail(str(call))
        assert bytes_of(inputs) == before, call
        for array, old in door.written:
            assert array.tobytes() == old, call


@law("words")
def test_what_an_error_says(door, calls, says):
    for call in calls:
        with pytest.raises(door.errors) as caught:
            door.run(call)
        says(caught.value)


def test_the_reasons_of_the_core(monkeypatch):
    """Of the calls of NumPy's arrays."""
    found, error = [], RejectedCall.error
    monkeypatch.setattr(
        RejectedCall,
        "error",
        lambda self, *names: found.append(self.rejection.reason) or error(self, *names),
    )
    for call in calls_under("words", DOORS[0]):
        found.clear()
        with pytest.raises(DOORS[0].errors):
            DOORS[0].run(call)
        assert "".join(found) == FAULTS[call.fault].reason, call
