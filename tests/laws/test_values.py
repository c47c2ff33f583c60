"""Results are those of the float64 references, by one judge."""

import pytest
from cases.laws import law
from helpers import NUMPY

from onedsl import testing

pytestmark = pytest.mark.filterwarnings("ignore::onedsl.GammaIgnoredWarning")


def check(door, call):
    result = door.run(call)
    assert result.keys() == door.results(call), call
    try:
        testing.assert_close(result, door.expected(call), backend=door.backend)
    except AssertionError as error:
        raise AssertionError(f"{call}: {error}") from error


@law("values")
def test_results_equal_the_reference(door, calls):
    for call in calls:
        check(door, call)


@law("combinations")
def test_combinations_of_inputs_and_outputs(door, calls):
    """In arrays that the call gets, between guard bytes."""
    for call in calls:
        check(door, call)


@law("empty")
def test_empty_tensors(door, calls):
    for call in calls:
        check(door, call)


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
