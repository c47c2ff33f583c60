#include "listening.hpp"

namespace onedsl {

std::atomic<bool> listening = false;

}  // namespace onedsl
