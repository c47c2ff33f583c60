#pragma once

#include <string>

#include "../core/run_log.hpp"
#include "../core/threads.hpp"

namespace onedsl::native {

// Run a checked call on this memory and log it: statistics of any supported type, and tensors that
// may be empty. Names that are null are those of the operation. The caller does not hold the GIL.
// Thread-safe.
void run_call(const Call& call, const Pointers& memory, const Threads& threads,
              const LogNames* names = nullptr);

// Return a description of the kernels that run a pass, for users.
std::string implementation(Pass pass);

}  // namespace onedsl::native
