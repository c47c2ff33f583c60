#pragma once

#include <Python.h>
#include <cxxabi.h>
#include <unistd.h>

namespace onedsl {

// Releases the GIL, and takes it again at the end of its scope.
//
// While Python ends, it ends each other thread that wants the GIL, by unwinding its stack. That
// must not run our destructors, which touch Python objects, nor meet one that may not throw, which
// aborts the process. So such a thread waits here for the process to end, as Python itself has it
// from 3.14 on.
class ReleasedGil {
 public:
  ReleasedGil() : state_(PyEval_SaveThread()) {}
  ~ReleasedGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (const ::abi::__forced_unwind&) {
      for (;;) pause();
    }
  }
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace onedsl
