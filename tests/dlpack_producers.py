"""DLPack producers for tests, with valid or invalid values of each field of the protocol."""

import ctypes
import types

import helpers
import numpy as np

READ_ONLY, IS_COPIED = 1, 2
# A capsule does not copy its name, so the name must live as long.
VERSIONED, UNVERSIONED, OTHER = b"dltensor_versioned", b"dltensor", b"other"
EXCHANGE_API = b"dlpack_exchange_api"
CODES = {"f32": (2, 32), "bf16": (4, 16), "f16": (2, 16)}


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


class Unversioned(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
pointer_in = ctypes.pythonapi.PyCapsule_GetPointer
pointer_in.restype = ctypes.c_void_p
pointer_in.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Foreign:
    """An array of a library that supports DLPack only."""

    def __init__(
        self, array, *, versioned=True, flags=0, major=1, device=1, offset=0, strides=True, **type_
    ):
        self.array = np.asarray(array)
        code, bits = CODES[next(n for n, d in helpers.NUMPY.items() if d == self.array.dtype)]
        count, item = self.array.ndim, self.array.itemsize
        numbers = ctypes.c_int64 * max(count, 1)
        self._shape = numbers(*self.array.shape)
        self._strides = numbers(*(step // item for step in self.array.strides))
        tensor = Tensor(
            self.array.ctypes.data - offset,
            device,
            0,
            type_.get("ndim", count),
            type_.get("code", code),
            type_.get("bits", bits),
            type_.get("lanes", 1),
            self._shape,
            self._strides if strides else None,
            offset,
        )
        self._device = device
        self._versioned = versioned
        self._managed = (
            Versioned(major, 0, None, DELETER(), flags, tensor)
            if versioned
            else Unversioned(tensor, None, DELETER())
        )

    def __dlpack_device__(self):
        return self._device, 0

    def __dlpack__(self, *, max_version=None, stream=None):
        name = VERSIONED if self._versioned else UNVERSIONED
        return new_capsule(ctypes.addressof(self._managed), name, None)

    def __array_namespace__(self):
        return types.SimpleNamespace(from_dlpack=Taken)


class ExchangeApi(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("from_object", ctypes.c_void_p),
        ("to_object", ctypes.c_void_p),
        ("borrow_object", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Tensor))),
        ("current_stream", ctypes.c_void_p),
    ]

    @classmethod
    def of(cls, borrow_object=None, major=1):
        kind = dict(cls._fields_)["borrow_object"]
        function = kind(borrow_object) if borrow_object else kind()
        return cls(major, 0, None, None, None, None, function, None)


def with_exchange_api(api):
    """Return a Foreign whose library has C functions, too."""

    class Fast(Foreign):
        __dlpack_c_exchange_api__ = new_capsule(ctypes.addressof(api), EXCHANGE_API, None)
        _kept = api

    return Fast


def borrow(foreign, tensor):
    tensor[0] = foreign._managed.tensor
    return 0


class Old(Foreign):
    """An older version, whose __dlpack__ has no arguments."""

    def __dlpack__(self):
        return super().__dlpack__()


class Taken:
    """What the library of Foreign returns for a result: it consumes the capsule."""

    def __init__(self, producer, versioned=True):
        assert producer.__dlpack_device__() == (1, 0)
        capsule = producer.__dlpack__(max_version=(1, 0) if versioned else None)
        name, kind = (VERSIONED, Versioned) if versioned else (UNVERSIONED, Unversioned)
        managed = kind.from_address(pointer_in(capsule, name))
        if versioned:
            assert (managed.major, managed.flags) == (1, 0)
        tensor = managed.tensor
        assert (tensor.device_type, tensor.lanes, tensor.byte_offset) == (1, 1, 0)
        dtype = next(n for n, c in CODES.items() if c == (tensor.code, tensor.bits))
        item = helpers.NUMPY[dtype].itemsize
        shape = tensor.shape[: tensor.ndim]
        strides = [step * item for step in tensor.strides[: tensor.ndim]]
        self.aligned = not tensor.data or tensor.data % 64 == 0
        memory = (ctypes.c_char * (int(np.prod(shape)) * item)).from_address(tensor.data or 1)
        memory.owner = capsule
        flat = np.frombuffer(memory, np.uint8).view(helpers.NUMPY[dtype])
        self.array = np.lib.stride_tricks.as_strided(flat, shape, strides)
