#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace onedsl {

// An error that came out of oneDNN. `status` is the name of oneDNN's own status, as
// "invalid_arguments" or "unimplemented".
class OneDNNError : public std::runtime_error {
 public:
  OneDNNError(const std::string& message, std::string status)
      : std::runtime_error(message), status_(std::move(status)) {}
  const std::string& status() const noexcept { return status_; }

 private:
  std::string status_;
};

// oneDNN says that it cannot run this on this CPU.
class UnsupportedError : public OneDNNError {
 public:
  using OneDNNError::OneDNNError;
};

}  // namespace onedsl
