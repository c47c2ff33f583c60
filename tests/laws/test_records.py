"""The run log has a record of each run of onedsl's kernels: nothing else computed the results."""

import math

from cases.laws import law
from helpers import run_records


@law("records")
def test_the_records_of_a_call(door, calls):
    for call in calls:
        with run_records() as found:
            door.run(call)
        records = [record for record in found if hasattr(record, "operation")]
        assert [record.operation for record in records] == door.operations(call), call
        assert {record.dtype for record in records} == {call.dtype}, call
        if door.has_options:  # which makes one call of the class
            inputs = zip(call.target.schema.inputs, call.inputs, strict=True)
            given = tuple(port.name for port, array in inputs if array is not None)
            outputs = zip(call.fields, call.target.schema.outputs, strict=True)
            computed = tuple(port.name for name, port in outputs if name in call.results)
            assert (records[0].given, records[0].computed) == (given, computed), call
            assert math.prod(records[0].geometry) == call.values["src"].size, call
