#pragma once

#include <pybind11/pybind11.h>

#include <atomic>

namespace onedsl {

// An object of Python that begins something, and ends it when it is closed, by its `with` block or
// by close(), or, unless until_closed is set, when it is destroyed. To the interpreter, each of
// these is a single step, which an interrupt cannot divide.
template <class Begun>
class Scope {
 public:
  template <class... Arguments>
  explicit Scope(const Arguments&... arguments) : begun_(arguments...) {}
  ~Scope() {
    if (!until_closed) close();
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  void close() noexcept {
    if (is_open_.exchange(false)) begun_.end();
  }

  bool until_closed = false;

 private:
  Begun begun_;
  std::atomic<bool> is_open_ = true;
};

// Registers the class with a constructor of these arguments.
template <class Begun, class... Arguments>
void bind_scope(pybind11::module_& module, const char* const name) {
  namespace py = pybind11;
  using Class = Scope<Begun>;
  py::class_<Class>(module, name, py::is_final())
      .def(py::init<const Arguments&...>())
      .def_readwrite("until_closed", &Class::until_closed)
      .def("close", &Class::close)
      .def("__enter__", [](const py::object& self) { return self; })
      .def("__exit__", [](Class& self, const py::object&, const py::object&, const py::object&) {
        self.close();
      });
}

}  // namespace onedsl
