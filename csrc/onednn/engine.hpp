#pragma once

#include <exception>
#include <new>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <tuple>

#include "../core/thread_limit.hpp"
#include "../core/types.hpp"
#include "errors.hpp"

// oneDNN as a library: its version, its CPU engine, its errors.
namespace onedsl::onednn {

std::tuple<int, int, int> version();
std::string name();         // "oneDNN 3.2.0"
std::string cpu_runtime();  // "OpenMP", "TBB", ...
bool is_of_intel();         // whether Intel's compiler built it
// Another OpenMP library than that of the native kernels, if Intel's compiler built oneDNN. Without
// its functions, its threads would not be limited in a forked child, where they would hang.
const OpenMP& openmp_of_onednn();
std::string cpu_isa();  // the newest instruction set that oneDNN may use: "avx512_core_bf16"
// The instruction set that oneDNN's kernels of this type need if this CPU lacks it, or "".
std::string missing_isa(DataType data);
std::string build_hash();  // the commit that oneDNN was built from

// Returns the CPU engine. Throws OneDNNError, with installation instructions, if this oneDNN cannot
// create one.
const dnnl::engine& cpu_engine();
// Throws OneDNNError in a forked child if the engine does not work there: that of SYCL.
void check_engine();

// Throws the exception of a status: UnsupportedError if it is "unimplemented", OutOfMemoryError if
// it is "out_of_memory", OneDNNError otherwise.
[[noreturn]] void raise(const std::string& doing, const char* what, const std::string& status);

std::string status_name(const dnnl::error& error);

// Calls oneDNN and converts every exception to an OneDNNError. Besides dnnl::error oneDNN lets
// exceptions of its containers through: out_of_range, length_error and bad_alloc.
template <class Function>
auto translate(const std::string& doing, const Function& function) -> decltype(function()) {
  try {
    return function();
  } catch (const OneDNNError&) {
    throw;
  } catch (const dnnl::error& error) {
    raise(doing, error.what(), status_name(error));
  } catch (const std::bad_alloc& error) {
    raise(doing, error.what(), "out_of_memory");
  } catch (const std::exception& error) {
    raise(doing, error.what(), "runtime_error");
  }
}

}  // namespace onedsl::onednn
