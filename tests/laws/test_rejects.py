"""An invalid call raises, writes nothing, and says what is wrong."""

from dataclasses import replace

import numpy as np
import pytest
from cases.laws import law


def bytes_of(values):
    return {name: a.tobytes() for name, a in values.items() if isinstance(a, np.ndarray)}


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
