#include "engine.hpp"

#include <dlfcn.h>
#include <oneapi/dnnl/dnnl_debug.h>
#include <pthread.h>

#include <atomic>
#include <type_traits>

namespace onedsl::onednn {
namespace {

// In libdnnl and the libraries that it needs.
void* find_symbol(const char* const symbol) {
  static void* const library = [] {
    Dl_info found{};
    dladdr(reinterpret_cast<void*>(&dnnl_version), &found);
    return dlopen(found.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  }();
  return dlsym(library, symbol);
}

std::atomic<bool> is_engine_used = false;
// Written only in a newly forked child, while it has one thread.
bool is_engine_lost = false;

// The threads of SYCL do not survive a fork, and calls would wait for them forever.
[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, [] {
  is_engine_lost = is_engine_used && dnnl_version()->cpu_runtime == DNNL_RUNTIME_SYCL;
});

}  // namespace

std::tuple<int, int, int> version() {
  const dnnl_version_t* const v = dnnl_version();
  return {v->major, v->minor, v->patch};
}

std::string name() {
  const auto [major, minor, patch] = version();
  return "oneDNN " + std::to_string(major) + "." + std::to_string(minor) + "." +
         std::to_string(patch);
}

std::string cpu_runtime() { return dnnl_runtime2str(dnnl_version()->cpu_runtime); }

bool is_of_intel() { return find_symbol("_intel_fast_memcpy") != nullptr; }

const OpenMP& openmp_of_onednn() {
  static const OpenMP found = [] {
    OpenMP library = openmp;  // for builds without OpenMP
    const auto find = [&](auto& function, const char* const symbol) {
      if (void* const address = find_symbol(symbol)) {
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
      }
    };
    find(library.get_max_threads, "omp_get_max_threads");
    find(library.set_num_threads, "omp_set_num_threads");
    find(library.get_dynamic, "omp_get_dynamic");
    find(library.set_dynamic, "omp_set_dynamic");
    return library;
  }();
  return found;
}

std::string cpu_isa() {
  const std::string text = dnnl_cpu_isa2str(dnnl_get_effective_cpu_isa());
  const std::string prefix = "cpu_isa_";
  return text.compare(0, prefix.size(), prefix) == 0 ? text.substr(prefix.size()) : text;
}

std::string missing_isa(const DataType data) {
  const auto lacks = [](const dnnl_cpu_isa_t isa) {
    return (dnnl_get_effective_cpu_isa() & isa) != isa;  // newer ones contain the older ones' bits
  };
  if (data == DataType::bf16 && lacks(dnnl_cpu_isa_avx512_core)) return "avx512_core";
  if (data == DataType::f16 && lacks(dnnl_cpu_isa_avx512_core_fp16)) return "avx512_core_fp16";
  return "";
}

std::string build_hash() { return dnnl_version()->hash; }

// Created at the first use, not at import: the package must be importable with a oneDNN that cannot
// create its CPU engine, such as the SYCL build without an OpenCL CPU device. Never destroyed,
// because daemon threads may use it during process exit.
const dnnl::engine& cpu_engine() {
  check_engine();
  static const dnnl::engine* const engine = [] {
    is_engine_used = true;
    try {
      return new dnnl::engine(dnnl::engine::kind::cpu, 0);
    } catch (const dnnl::error& error) {
      throw OneDNNError(
          name() + " (CPU runtime " + cpu_runtime() +
              ") cannot create its CPU engine: " + error.what() +
              ". Install a CPU build of oneDNN: `pip install 'onednn-cpu-gomp<2024'`, or "
              "`conda install -c conda-forge onednn`; the PyPI package `onednn` is a SYCL build "
              "that needs an OpenCL CPU device: install intel-opencl-rt, and set "
              "OCL_ICD_FILENAMES to the path of its libintelocl.so in the environment's lib.",
          status_name(error));
    }
  }();
  return *engine;
}

void check_engine() {
  if (!is_engine_lost) return;
  throw OneDNNError(name() +
                        " (CPU runtime SYCL) cannot run in a forked process whose parent has used "
                        "it. Start processes by spawn, use backend=\"native\", or install a "
                        "oneDNN with OpenMP.",
                    "runtime_error");
}

void raise(const std::string& doing, const char* const what, const std::string& status) {
  const std::string message = name() + ", " + doing + ": " + what;
  if (status == "unimplemented") throw UnsupportedError(message, status);
  if (status == "out_of_memory") throw OutOfMemoryError(message, status);
  throw OneDNNError(message, status);
}

std::string status_name(const dnnl::error& error) { return dnnl_status2str(error.status); }

}  // namespace onedsl::onednn
