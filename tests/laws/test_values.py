"""Results are those of the float64 references, by one judge."""

import pytest
from cases.calls import bytes_of
from cases.laws import law
from helpers import NUMPY

from onedsl import testing

pytestmark = pytest.mark.filterwarnings("ignore::onedsl.GammaIgnoredWarning")


@law("values", "combinations", "empty")
def test_results_equal_the_reference(door, calls):
    """Those of combinations of inputs and outputs are in given arrays, between guard bytes.

    The inputs are as before the call.
    """
    for call in calls:
        inputs, expected = call.values, door.expected(call)
        before = bytes_of(inputs)
        result = door.run(call)
        assert bytes_of(inputs) == before, call
        assert result.keys() == door.results(call), call
        try:
            testing.assert_close(result, expected, backend=door.backend)
        except AssertionError as error:
            raise AssertionError(f"{call}: {error}") from error


@law("layouts")
def test_dtypes_and_layouts(door, calls):
    for call in calls:
        src = call.values["src"]
        kinds = dict(zip(call.fields, call.target.schema.outputs, strict=True))
        for name, array in door.run(call).items():
            is_tensor = kinds[name].kind == "tensor"
            assert array.dtype == NUMPY[call.dtype if is_tensor else door.statistics(call)], (
                call,
                name,
            )
            if is_tensor:
                assert array.shape == src.shape, (call, name)
                assert array.strides == door.strides(call), (call, name)
