#include "views.hpp"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "gil.hpp"

namespace py = pybind11;

namespace onedsl {
namespace {

py::list rows_of(const std::vector<onednn::GraphView::Tensor>& tensors) {
  py::list rows;
  for (const onednn::GraphView::Tensor& t : tensors) {
    rows.append(py::make_tuple(t.id, t.type, py::tuple(py::cast(t.dims)),
                               t.strides ? py::object(py::tuple(py::cast(*t.strides))) : py::none(),
                               t.layout, t.property));
  }
  return rows;
}

}  // namespace

py::object graph_rows(const Plan& plan) {
  const std::optional<onednn::GraphView> graph = [&] {
    // Safe without the GIL: oneDNN touches no Python object, and the plan is kept by its holder.
    const ReleasedGil released;
    return plan.graph();
  }();
  if (!graph) return py::none();
  py::list nodes;
  for (const onednn::GraphView::Node& node : graph->nodes) {
    py::dict attributes;
    for (const auto& [name, value] : node.attributes) attributes[name.c_str()] = py::cast(value);
    nodes.append(py::make_tuple(node.id, node.name, node.kind, attributes, rows_of(node.inputs),
                                rows_of(node.outputs)));
  }
  py::list partitions;
  for (const onednn::GraphView::Partition& part : graph->partitions) {
    partitions.append(py::make_tuple(part.id, part.nodes, part.supported, rows_of(part.inputs),
                                     rows_of(part.outputs)));
  }
  return py::make_tuple(nodes, partitions);
}

py::dict geometry_row(const Plan& plan) {
  const Geometry& g = plan.key().problem.geometry;
  py::list loops;
  for (std::size_t i = 0; i < g.num_loops; ++i) {
    loops.append(py::make_tuple(g.loops[i].count, g.loops[i].stride, g.loops[i].kept));
  }
  py::dict row;
  row["outer"] = g.outer;
  row["channels"] = g.channels;
  row["inner"] = g.inner;
  row["loops"] = loops;
  return row;
}

py::object kernel_info_row(const Plan& plan) {
  const std::optional<native::KernelInfo> cut = plan.cut();
  if (!cut) return py::none();
  py::dict row;
  row["groups"] = cut->groups;
  row["lanes"] = cut->order.lanes;
  row["columns"] = cut->order.columns;
  row["rows"] = cut->order.rows;
  row["row"] = cut->order.row;
  row["segments"] = cut->order.segments;
  row["chunks"] = cut->order.chunks;
  row["chunk_rows"] = cut->order.chunk_rows;
  row["partials"] = cut->order.partials;
  row["threads"] = cut->schedule.threads;
  row["own_panels"] = cut->schedule.own_panels;
  row["panel"] = cut->schedule.panel;
  row["block"] = cut->schedule.block;
  row["non_temporal"] = cut->non_temporal;
  return row;
}

}  // namespace onedsl
