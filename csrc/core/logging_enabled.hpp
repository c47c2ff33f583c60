#pragma once

#include <atomic>

namespace onedsl {

// Whether runs are logged. Disabled logging costs a run one load of this flag.
inline std::atomic<bool> logging_enabled = false;

}  // namespace onedsl
