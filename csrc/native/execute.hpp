#pragma once

#include <string>

#include "../core/run_log.hpp"
#include "../core/threads.hpp"

namespace onedsl::native {

// Run a call and log it: statistics of any supported type, and tensors that may be empty. Ports do
// not overlap, except that in_place_output of the signature may be exactly in_place_input. The
// caller does not hold the GIL. Thread-safe.
void execute(const Problem& problem, const Threads& threads, const Ports& ports,
             const LogNames& names = {});

// Return a description of the kernels that run a pass, for users.
std::string implementation(Pass pass);

}  // namespace onedsl::native
