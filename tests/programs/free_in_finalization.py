"""Calls the deleter of an exported array on another thread while Python finalizes."""

import ctypes
import sys

import numpy as np
from dlpack_producers import UNVERSIONED, Unversioned, pointer_in

from onedsl import _core

libc = ctypes.CDLL(None)


class Importer:
    """Keeps the capsule of a result, as arrays of other libraries do."""

    __module__ = "importer"

    def __init__(self, array):
        self.array = array

    def __array_namespace__(self):
        return self

    def from_dlpack(self, producer):
        self.capsule = producer.__dlpack__()
        return self


class FreesOnThread:
    """Calls the deleter on a new thread when the interpreter deletes the module's names."""

    def __init__(self, capsule):
        self.capsule = capsule
        self.managed = pointer_in(capsule, UNVERSIONED)
        deleter = Unversioned.from_address(self.managed).deleter
        self.deleter = ctypes.cast(deleter, ctypes.c_void_p).value
        self.write, self.is_finalizing = sys.stdout.write, sys.is_finalizing
        self.create, self.join = libc.pthread_create, libc.pthread_join
        self.pointer, self.thread = ctypes.c_void_p, ctypes.c_ulong()
        self.flush, self.byref = sys.stdout.flush, ctypes.byref

    def __del__(self):
        self.write(f"finalizing: {self.is_finalizing()}\n")
        self.create(
            self.byref(self.thread), None, self.pointer(self.deleter), self.pointer(self.managed)
        )
        self.join(self.thread, None)
        self.write("freed\n")
        self.flush()


array = np.ones(4, np.float32)
importer = Importer(array)
_core.export_array(array, importer)
frees = FreesOnThread(importer.capsule)
# Its own destructor must not free it again.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(importer.capsule))
