#pragma once

#include <pybind11/pybind11.h>

#include "call.hpp"
#include "gil.hpp"
#include "run_log.hpp"

// What follows on a call that was found right.
namespace onedsl {

// Where a run reads and writes, and what it returns.
struct Run {
  Ports ports;
  pybind11::object results;  // a tuple with an entry for each of the op's outputs
};

Run prepare(const Call& call, const Signature& signature, OutputSet outputs,
            const pybind11::object& out);

// find() gives the plan.
template <class Find>
void execute(const Find& find, const Ports& ports) {
  RunLog telling;
  {
    // Safe without the GIL: plans touch no Python object, and the arrays are kept alive by the
    // caller's frame and by its Run.
    const ReleasedGil released;
    telling.run(*find(), ports);
  }
  telling.tell();
}

// `src` is what the caller passed: results that were made here are to be of its kind.
pybind11::object deliver(Run run, const Call& call, const pybind11::object& out,
                         pybind11::handle src);

}  // namespace onedsl
