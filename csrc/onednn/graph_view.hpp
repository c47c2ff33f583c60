#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace onedsl::onednn {

// The graph that oneDNN compiled for an operation, for inspection. Strings are oneDNN's names.
struct GraphView {
  struct Tensor {
    std::size_t id = 0;
    std::string type;
    std::vector<std::int64_t> dims;
    std::optional<std::vector<std::int64_t>> strides;  // of a strided layout
    std::string layout;
    std::string property;
  };
  struct Node {
    std::size_t id = 0;
    std::string name;
    std::string kind;
    std::vector<std::pair<std::string, std::variant<bool, float, std::string>>> attributes;
    std::vector<Tensor> inputs, outputs;
  };
  struct Partition {
    std::size_t id = 0;
    std::vector<std::size_t> nodes;
    bool supported = false;
    std::vector<Tensor> inputs, outputs;  // as compiled
  };

  std::vector<Node> nodes;
  std::vector<Partition> partitions;
};

}  // namespace onedsl::onednn
