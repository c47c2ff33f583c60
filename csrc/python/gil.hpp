#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

namespace onedsl {

// While Python finalizes, versions before 3.14 terminate each other thread that acquires the GIL,
// by unwinding its stack. That must not run our destructors, which use Python objects, nor reach a
// function that may not throw, which aborts the process. Such a thread sleeps here until the
// process ends, as Python 3.14 does it.
template <class Acquire>
void acquire_gil(const Acquire& acquire) {
  try {
    acquire();
  } catch (const ::abi::__forced_unwind&) {
    for (;;) pause();
  }
}

// Releases the GIL within a scope.
class ReleasedGil {
 public:
  ReleasedGil() : state_(PyEval_SaveThread()) {}
  ~ReleasedGil() {
    acquire_gil([this] { PyEval_RestoreThread(state_); });
  }
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

 private:
  PyThreadState* state_;
};

// Holds the GIL within a scope, on any thread, whether it has the GIL already or not.
class AcquiredGil {
 public:
  AcquiredGil() {
    acquire_gil([this] { state_ = PyGILState_Ensure(); });
  }
  ~AcquiredGil() { PyGILState_Release(state_); }
  AcquiredGil(const AcquiredGil&) = delete;
  AcquiredGil& operator=(const AcquiredGil&) = delete;

 private:
  PyGILState_STATE state_{};
};

// Returns whether this thread may acquire the GIL: not after Python has been finalized, and not
// while it finalizes, unless this is the thread that does it.
inline bool can_acquire_gil() {
  if (Py_IsInitialized() == 0) return false;
#if PY_VERSION_HEX >= 0x030d0000
  const bool finalizing = Py_IsFinalizing() != 0;
#else
  const bool finalizing = _Py_IsFinalizing() != 0;
#endif
  return !finalizing || PyGILState_Check() != 0;
}

}  // namespace onedsl
