#pragma once

namespace onedsl {

// Return whether the process's malloc is glibc's, on whose settings mallopt works.
bool malloc_is_glibcs() noexcept;

// Let glibc's malloc keep all memory that is freed, or return it to the system again: at once what
// is free, and later by malloc's initial thresholds, which then no longer adapt to the program. The
// limit of one arena cannot be lifted once a thread has met it. Return false if malloc rejects a
// setting.
bool keep_memory(bool keep) noexcept;

}  // namespace onedsl
