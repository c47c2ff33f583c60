#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

// Graphs as data. Strings are oneDNN's names.
namespace onedsl::onednn {

struct TensorView {
  std::size_t id = 0;
  std::string type;
  std::vector<std::int64_t> dims;
  std::vector<std::int64_t> strides;  // in elements; empty unless the layout is strided
  std::string layout = "strided";
  std::string property = "undef";
};

struct NodeView {
  std::size_t id = 0;
  std::string name;
  std::string kind;
  std::vector<std::pair<std::string, std::variant<bool, float, std::string>>> attributes;
  std::vector<TensorView> inputs, outputs;
};
using Nodes = std::vector<NodeView>;

struct PartitionView {
  std::size_t id = 0;
  std::vector<std::size_t> nodes;
  bool supported = false;
  std::vector<TensorView> inputs, outputs;
};

}  // namespace onedsl::onednn
