#include "logging_enabled.hpp"

namespace onedsl {

std::atomic<bool> logging_enabled = false;

}  // namespace onedsl
