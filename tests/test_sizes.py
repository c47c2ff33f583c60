"""Sizes: empty tensors, tensors that no memory can hold, and the most dimensions.

The laws have other empty tensors. How the kernels divide the work: test_threads.py, the C++ tests.
"""

import helpers
import numpy as np
import pytest
from dlpack_producers import Foreign
from helpers import EPSILON

import onedsl
from onedsl import _core, testing
from onedsl.operators.base import kernel_info

op = onedsl.BatchNormTrainingBackward(EPSILON)


def test_empty_tensors_with_more_channels_than_memory():
    """Regression: bad_alloc for a buffer of the channels, which an empty tensor does not need."""
    spec = onedsl.TensorSpec((0, 2**40))
    info = kernel_info(op, spec)
    assert info["geometry"] == (0, 2**40, 1)
    assert info.keys() == {"geometry", "implementation", "num_threads"}, "without a schedule"
    with pytest.raises(onedsl.UnsupportedError):
        op.graph(spec).repaired().compile()


@helpers.backends
def test_empty_tensors_at_unaligned_addresses(backend):
    """Regression: NumPy treats an empty array at an odd address as aligned, the core did not."""
    odd = np.zeros(5, np.uint8)[1:].view(np.float32)[:0]
    src, stats = odd.reshape(0, 3), np.ones(3, np.float32)
    out = (src.copy(), stats.copy(), stats.copy())
    assert not op(src, src, stats, stats, out=out, backend=backend).diff_beta.any()
    none = odd.reshape(3, 0)
    assert op(none, none, odd, odd, odd, out=(none, odd, odd), backend=backend).diff_gamma is odd


def test_strides_of_empty_tensors():
    """Strides are those of NumPy, which counts a size of 0 as 1."""
    spec = onedsl.TensorSpec((4, 0, 3))
    assert spec.strides == (3, 3, 1)
    assert spec == onedsl.TensorSpec.of(np.empty((4, 0, 3), np.float32))
    assert eval(repr(spec)) == spec


TOO_LARGE = [(2**54 + 1, 1), (2**40, 2**40), (2**31, 2**31, 4), (2**62, 4), (2**70, 4)]
EMPTY_AND_TOO_LARGE = [(0, 2**40, 2**40), (2**40, 0, 2**40), (2**40, 2**40, 0)]


@pytest.mark.parametrize("shape", [*TOO_LARGE, (2**63 - 1, 2, 3)], ids=str)
def test_more_bytes_than_the_address_space(shape):
    with pytest.raises(ValueError, match="shape must have at most"):
        onedsl.TensorSpec(shape)


@pytest.mark.parametrize("shape", EMPTY_AND_TOO_LARGE, ids=str)
def test_empty_tensors_count_a_size_of_0_as_1(shape):
    """As in NumPy. Regression: the order of the sizes decided whether the shape was accepted."""
    with pytest.raises(ValueError, match="where a size of 0 counts as 1, got"):
        onedsl.TensorSpec(shape)
    assert _core.geometry(shape, (1, 1, 1)) is None
    with pytest.raises(ValueError, match="too big"):
        np.empty(shape, np.float32)


@pytest.mark.parametrize("shape", [(2**31, 1), (2**25, 64), (65536, 32768, 1)], ids=str)
def test_two_to_the_31_elements(shape, tmp_path):
    """oneDNN's kernels use 32-bit sizes in places; onedsl's do not."""
    src = np.memmap(tmp_path / "sparse", np.float32, "w+", shape=shape)
    ones = np.ones(shape[-1], np.float32)
    with pytest.raises(onedsl.UnsupportedError, match=r"2\^31 elements") as caught:
        op(src, src, ones, ones, backend="onednn")
    assert 'Use backend="auto"' in str(caught.value)
    spec = onedsl.TensorSpec.of(src)
    with pytest.raises(onedsl.UnsupportedError, match=r"2\^31 elements"):
        op.graph(spec).compile()
    assert kernel_info(op, spec)["workers"] >= 1


def test_rank():
    with pytest.raises(ValueError, match="at most 64 dimensions, got 65"):
        onedsl.TensorSpec((1,) * 65)
    most = (np.lib.NumpyVersion(np.__version__) >= "2.0.0" and 64) or 32
    shape = (4, *(1,) * (most - 2), 3)
    problem, expected = helpers.case(shape, "f32", "f32", "NXC")
    testing.assert_close(op(*problem), expected)


LARGEST = """
import itertools, resource, onedsl
from onedsl.operators.base import kernel_info

n = 2**54  # f32 elements
shapes = [(n, 1), (1, n), (3, n // 3), (2**27, 2**27)]
shapes += [(*shape, 1) for shape in shapes]
for data_format, shape in itertools.product(onedsl.DataFormat, shapes):
    op = onedsl.BatchNormTrainingBackward(1e-5, data_format)
    info = kernel_info(op, onedsl.TensorSpec(shape))
    numbers = [*info.pop("geometry"), *(v for v in info.values() if not isinstance(v, str))]
    assert len(numbers) > 10 and all(number >= 0 for number in numbers), (shape, info)
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
try:
    op.graph(onedsl.TensorSpec((1, 2**33, 1))).repaired().compile()
except onedsl.UnsupportedError as error:
    assert "2^31" in str(error)
else:
    raise AssertionError("oneDNN compiled 2^33 elements")
"""


def test_no_integer_overflows_in_the_largest_tensors():
    """Regression: overflows once made a loop endless, so this runs in a process with a timeout.

    oneDNN rejects the size without memory: buffers of 96 GiB were allocated before the check.
    """
    helpers.run_child(LARGEST)


def test_more_elements_than_numbers_count_without_strides():
    """All of them are at one address, so that no address overflows."""
    foreign = Foreign(np.zeros((2, 3, 4, 5), np.float32))
    tensor = foreign._managed.tensor
    for axis, size in enumerate((2**62, 4, 1, 1)):
        tensor.shape[axis], tensor.strides[axis] = size, 0
    assert _core.import_array(foreign) == "invalid"
