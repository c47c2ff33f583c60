#pragma once

#include <pybind11/pybind11.h>

#include "call.hpp"

// The memory of a validated call.
namespace onedsl {

// The memory of a run, and a tuple with an entry for each output of the operation.
struct Run {
  Ports ports;
  pybind11::object results;
};

// Allocates the results if `out` is None.
Run prepare(const Call& call, const Signature& signature, OutputSet outputs,
            const pybind11::object& out);

// Returns the results as arrays of the library of `src`, the array that the caller passed.
pybind11::object export_results(Run run, const Call& call, const pybind11::object& out,
                                pybind11::handle src);

}  // namespace onedsl
