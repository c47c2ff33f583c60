#pragma once

#include <stdexcept>
#include <string>
#include <utility>

// Without oneDNN's headers: both extensions translate these errors.
namespace onedsl::onednn {

// An error of oneDNN, and oneDNN's name of its status, such as "invalid_arguments".
struct OneDNNError : std::runtime_error {
  OneDNNError(const std::string& message, std::string name)
      : std::runtime_error(message), status(std::move(name)) {}
  std::string status;
};

// oneDNN does not support the graph on this CPU.
struct UnsupportedError : OneDNNError {
  using OneDNNError::OneDNNError;
};

struct OutOfMemoryError : OneDNNError {
  using OneDNNError::OneDNNError;
};

}  // namespace onedsl::onednn
