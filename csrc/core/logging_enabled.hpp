#pragma once

#include <atomic>

namespace onedsl {

// Whether somebody wants to be told what runs. While nobody does, that costs a look here.
extern std::atomic<bool> logging_enabled;

}  // namespace onedsl
