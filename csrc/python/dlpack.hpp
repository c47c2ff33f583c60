#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <optional>
#include <string>

#include "arrays.hpp"
#include "dlpack_abi.hpp"

// Arrays of other libraries, in and out, by the DLPack protocol.
namespace onedsl {

// The C functions of the library that an object is from, or null.
const abi::ExchangeApi* exchange_api(pybind11::handle object);

// By the library's C functions, without a capsule. Nothing where it has none, or where the object
// has no memory that the CPU reaches, is of another type than ours, or stands for more than its
// memory.
std::optional<View> borrow(pybind11::handle object, RequiresGrad requires_grad);

// A NumPy array itself; for anything else an array over its memory, which keeps it alive. Nothing
// as above, but that the object may give a capsule.
std::optional<pybind11::array> import_array(pybind11::handle object);

// The name of the type of an object's items, as "float64", for messages: nothing else of what it
// says is believed. Nothing where it gives no capsule. Its own errors come out.
std::optional<std::string> dlpack_type(pybind11::handle object);

// The same memory as an array of the library that `like` is from; the array itself where that
// library is NumPy, or has no from_dlpack to be found.
pybind11::object export_array(pybind11::array array, pybind11::handle like);

// What a from_dlpack takes. NumPy's own arrays do not export bf16.
struct Producer {
  pybind11::array array;

  pybind11::object capsule(bool versioned) const;
};

}  // namespace onedsl
