"""Results have the same bits for any memory, caller, number of threads and later change."""

from dataclasses import replace

from cases.laws import law
from doors import DOORS
from fuzz.judge import OPENMP
from helpers import run_records

NUMPY = DOORS[0]


def same_bits(results, expected, call):
    assert results
    for name, array in results.items():
        assert array.dtype == expected[name].dtype, (call, name)
        assert array.tobytes() == expected[name].tobytes(), (call, name)


@law("bits")
def test_bits_are_those_of_numpys_arrays(door, calls):
    for call in calls:
        same_bits(door.run(call), NUMPY.run(call), call)


@law("threads")
def test_bits_do_not_depend_on_the_number_of_threads(door, calls):
    for call in calls:
        with OPENMP.limit(limits=1):
            expected = door.run(call)
        for threads in (2, 3, 7):
            with OPENMP.limit(limits=threads), run_records() as records:
                same_bits(door.run(call), expected, call)
            used = {getattr(record, "num_threads", threads) for record in records}
            assert max(used) == threads, call


@law("memory")
def test_bits_do_not_depend_on_where_the_inputs_are(door, calls):
    for call in calls:
        same_bits(door.run(call), door.run(replace(call, problem="rank 4")), call)


@law("in place")
def test_bits_do_not_depend_on_where_the_results_are(door, calls):
    for call in calls:
        expected = door.run(replace(call, out=""))
        same_bits(door.run(call), expected, call)
        same_bits(door.run(replace(call, out="given")), expected, call)


@law("changes")
def test_bits_do_not_depend_on_what_changes_before_the_gradient(door, calls):
    """Autograd raises if the gradient depends on what a program changed in place."""
    for call in calls:
        expected = door.run(call)
        for name in door.between_passes(call):
            found = door.run_with_change(call, name)
            if found is None:
                assert name != "beta", call
            else:
                assert name not in ("src", "gamma"), call
                same_bits(found, expected, call)
