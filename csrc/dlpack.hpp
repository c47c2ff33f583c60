#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <optional>

// Arrays of other libraries as NumPy arrays over the same memory, and back, by the DLPack protocol.
namespace onedsl {

// A NumPy array itself; for anything else an array over its memory, which keeps it alive. Nothing
// for what has no such memory: an object of another kind, or on another device, or of another type
// than ours, or a tensor that stands for more than its memory (one that requires grad).
std::optional<pybind11::array> import_array(pybind11::handle object);

// The same memory as an array of the library that `like` is from; the array itself where that
// library is NumPy, or has no from_dlpack to be found.
pybind11::object export_array(pybind11::array array, pybind11::handle like);

}  // namespace onedsl
