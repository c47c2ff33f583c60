#include "run_log.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <pybind11/pybind11.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string_view>

#include "../core/no_destructor.hpp"
#include "../onednn/engine.hpp"

namespace py = pybind11;

namespace onedsl {

namespace {

NoDestructor<std::mutex>& stdout_mutex() {
  static NoDestructor<std::mutex> made;
  return made;
}

void write_all(const int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(file, text.data(), text.size());
    if (written < 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

std::string read_all(const int file) {
  std::string text;
  std::array<char, 4096> part{};
  lseek(file, 0, SEEK_SET);
  for (ssize_t got = 0; (got = read(file, part.data(), part.size())) > 0;) {
    text.append(part.data(), static_cast<std::size_t>(got));
  }
  return text;
}

// C's stdout goes to a file of its own in this scope, because oneDNN knows no other place for its
// lines. What other threads print meanwhile is printed afterwards. Where the system has no file
// left, nothing is captured.
class CapturedStdout {
 public:
  CapturedStdout() : lock_(*stdout_mutex()) {
    std::fflush(stdout);
    file_ = memfd_create("onedsl", MFD_CLOEXEC);
    before_ = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
    captures_ = file_ >= 0 && before_ >= 0 && dup2(file_, STDOUT_FILENO) >= 0;
  }

  ~CapturedStdout() { end(); }
  CapturedStdout(const CapturedStdout&) = delete;
  CapturedStdout& operator=(const CapturedStdout&) = delete;

  // oneDNN's lines.
  std::string end() {
    std::string lines;
    if (captures_) {
      std::fflush(stdout);
      dup2(before_, STDOUT_FILENO);
      captures_ = false;
      lines = sort_out(read_all(file_));
    }
    for (int* const file : {&file_, &before_}) {
      if (*file >= 0) close(*file);
      *file = -1;
    }
    return lines;
  }

 private:
  static std::string sort_out(const std::string_view text) {
    std::string lines;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t found = text.find('\n', begin);
      const std::size_t end = found == std::string_view::npos ? text.size() : found + 1;
      const std::string_view line = text.substr(begin, end - begin);
      if (line.substr(0, 7) == "onednn_") {
        lines += line;
      } else {
        write_all(STDOUT_FILENO, line);
      }
      begin = end;
    }
    return lines;
  }

  std::lock_guard<std::mutex> lock_;
  int file_ = -1;
  int before_ = -1;
  bool captures_ = false;
};

// Whether the user has oneDNN print by its own variable, which then stays as it is.
bool prints_by_itself() {
  const char* const value = std::getenv("ONEDNN_VERBOSE");
  const std::string_view text = value == nullptr ? "" : value;
  return !text.empty() && text != "0" && text != "none";
}

}  // namespace

void enable_logging(const bool on) {
  // A child that was forked off meanwhile would keep the file for its stdout. Registered here, and
  // so after oneDNN's guard, this waits first, and that only then.
  static const int registered =
      pthread_atfork([] { stdout_mutex()->lock(); }, [] { stdout_mutex()->unlock(); },
                     [] { stdout_mutex()->unlock(); });
  static_cast<void>(registered);
  if (!prints_by_itself()) onednn::print_runs(on);
  logging_enabled = on;
}

void RunLog::run_and_watch(const Plan& plan, const Ports& ports) {
  RunRecord story{plan.key(), plan.backend(), plan.implementation(), 0, ""};
  const auto timed = [&] {
    const auto begin = std::chrono::steady_clock::now();
    plan.execute(ports);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    story.seconds = taken.count();
  };
  if (story.backend == "onednn") {
    CapturedStdout captured;
    timed();
    story.printed = captured.end();
  } else {
    timed();
  }
  story_ = std::move(story);
}

void RunLog::tell_python() const {
  const Geometry& g = story_->key.problem.geometry;
  py::module_::import("onedsl.runtime.run_log")
      .attr("tell")(signature_of(story_->key.problem.operation).name, story_->key.problem.data,
                    py::make_tuple(g.outer, g.channels, g.inner), story_->backend,
                    story_->implementation, story_->key.num_threads, story_->seconds,
                    py::str(py::bytes(story_->printed).attr("decode")("utf-8", "replace")));
}

}  // namespace onedsl
