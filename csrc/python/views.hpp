#pragma once

#include <pybind11/pybind11.h>

#include "../plan/plan.hpp"

// What a plan is made of, as plain Python objects, for people to look at.
namespace onedsl {

// None where oneDNN runs no graph.
pybind11::object graph_rows(const Plan& plan);

pybind11::dict geometry_row(const Plan& plan);

// None where onedsl's kernels do not run.
pybind11::object kernel_info_row(const Plan& plan);

}  // namespace onedsl
