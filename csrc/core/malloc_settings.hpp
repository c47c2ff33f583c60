#pragma once

namespace onedsl {

// Return whether the process's malloc is glibc's, on whose settings mallopt works.
bool malloc_is_glibcs() noexcept;

// Let glibc's malloc keep the memory of blocks up to 32 MB that are freed, or return it to the
// system again: at once what is free, and later by malloc's initial thresholds, which then no
// longer adapt to the program. With `one_arena`, all threads share one arena while memory is kept;
// this limit cannot be lifted once a thread has met it. Return false, with nothing changed, if
// malloc rejects the settings.
bool keep_memory(bool keep, bool one_arena) noexcept;

}  // namespace onedsl
