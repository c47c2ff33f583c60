#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace onedsl {

// An error of oneDNN. `status` is oneDNN's name for it, such as "invalid_arguments".
class OneDNNError : public std::runtime_error {
 public:
  OneDNNError(const std::string& message, std::string status)
      : std::runtime_error(message), status_(std::move(status)) {}
  const std::string& status() const noexcept { return status_; }

 private:
  std::string status_;
};

// oneDNN does not support the operation on this CPU.
class UnsupportedError : public OneDNNError {
 public:
  using OneDNNError::OneDNNError;
};

}  // namespace onedsl
