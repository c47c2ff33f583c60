#pragma once

namespace onedsl {

// Return whether the process's malloc is glibc's, on whose settings mallopt works.
bool malloc_is_glibcs() noexcept;

// Let glibc's malloc keep all memory that is freed, or return it to the system again: what is free
// at once, and later as malloc does by default. Return false if malloc rejects a setting.
bool keep_memory(bool keep) noexcept;

}  // namespace onedsl
