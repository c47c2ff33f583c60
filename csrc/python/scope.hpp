#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <memory>
#include <optional>

namespace onedsl {

// An object of Python, where something has begun that ends when it is closed, by its `with` block
// or by close(), or, unless until_closed is set, when it is destroyed, as a report is. Not a class
// in Python: an interrupt (Control-C in a notebook) could come between two of its statements, and
// the kernels or the log would stay in use.
template <class Begun>
class Scope {
 public:
  Scope() = default;
  ~Scope() {
    if (!until_closed) close();
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  template <class... Arguments>
  void begin(const Arguments&... arguments) {
    begun_.emplace(arguments...);
    is_open_ = true;
  }
  void close() noexcept {
    if (is_open_.exchange(false)) begun_->end();
  }

  bool until_closed = false;

 private:
  std::optional<Begun> begun_;
  std::atomic<bool> is_open_ = false;
};

// Registers the class, and a function of these arguments that begins a scope.
template <class Begun, class... Arguments>
void bind_scope(pybind11::module_& module, const char* const name, const char* const function) {
  namespace py = pybind11;
  using Class = Scope<Begun>;
  py::class_<Class>(module, name, py::is_final())
      .def_readwrite("until_closed", &Class::until_closed)
      .def("close", &Class::close)
      .def("__enter__", [](const py::object& self) { return self; })
      .def("__exit__", [](Class& self, const py::object&, const py::object&, const py::object&) {
        self.close();
      });
  module.def(function, [](const Arguments&... arguments) {
    auto scope = std::make_unique<Class>();
    scope->begin(arguments...);
    return scope;
  });
}

}  // namespace onedsl
