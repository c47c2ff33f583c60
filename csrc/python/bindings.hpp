#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <utility>

#include "../core/operation.hpp"

namespace onedsl {

// Option of py::class_. pybind11 uses a new object without checking that Python had memory for it,
// and it lets exceptions of a constructor's last steps through to Python, which ends the process.
// So only functions create objects, where exceptions are caught.
inline const pybind11::custom_type_setup created_by_functions([](PyHeapTypeObject* const type) {
  type->ht_type.tp_flags |= Py_TPFLAGS_DISALLOW_INSTANTIATION;
  type->ht_type.tp_alloc = [](PyTypeObject* const own, const Py_ssize_t items) {
    PyObject* const object = PyType_GenericAlloc(own, items);
    if (object == nullptr) throw pybind11::error_already_set();
    return object;
  };
});

// Returns a value as an object of Python. Where a function returns the value itself, pybind11
// raises TypeError if there is no memory for the object.
template <class Value>
pybind11::object to_python(Value&& value, const pybind11::return_value_policy policy =
                                              pybind11::return_value_policy::automatic_reference) {
  pybind11::object object = pybind11::cast(std::forward<Value>(value), policy);
  if (!object) throw pybind11::error_already_set();
  return object;
}

// Returns the operation with an id of signatures(), or throws std::invalid_argument.
Operation parse_operation(const std::string& id);

// Registers Operator and a function for signatures.
void bind_operator(pybind11::module_& module);
// Registers RunnableGraph, the base class of compiled graphs, and the kinds of ops.
void bind_graph(pybind11::module_& module);
// Registers the exceptions of oneDNN. In both extensions: each translates what its functions throw.
void bind_errors(pybind11::module_& module);
// Registers the functions of the run log, which call onedsl/runtime/run_log.py.
void bind_run_log(pybind11::module_& module);

}  // namespace onedsl
