#pragma once

#include <exception>
#include <new>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>

#include "../core/errors.hpp"

// oneDNN as a library: its version, its CPU engine, its errors.
namespace onedsl::onednn {

struct Version {
  int major, minor, patch;
};
Version version();

// "oneDNN 3.2.0" and the like.
std::string name();

// oneDNN's own word for its threading, as "OpenMP" or "TBB".
std::string cpu_runtime();

// The instruction set that oneDNN may use here, as "avx512_core_bf16".
std::string cpu_isa();

// oneDNN's own build, as "40112196287e8866a7259df35f817229454d0c96".
std::string build_hash();

// Whether oneDNN prints a line on stdout for each primitive that it runs.
void print_runs(bool on);

// Throws OneDNNError, saying what to install, where this oneDNN cannot make one.
const dnnl::engine& cpu_engine();

// Throws UnsupportedError for "unimplemented", and OneDNNError for any other status.
[[noreturn]] void raise(const std::string& doing, const char* what, const std::string& status);

std::string status_name(const dnnl::error& error);

// Runs a call of oneDNN and gives every exception that comes out of it a status and words. oneDNN
// lets out not only dnnl::error: out_of_range, length_error and bad_alloc come too, from its own
// containers.
template <class Call>
auto translate(const std::string& doing, const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const OneDNNError&) {
    throw;  // has its words already
  } catch (const dnnl::error& error) {
    raise(doing, error.what(), status_name(error));
  } catch (const std::bad_alloc& error) {
    raise(doing, error.what(), "out_of_memory");
  } catch (const std::exception& error) {
    raise(doing, error.what(), "runtime_error");
  }
}

}  // namespace onedsl::onednn
