#pragma once

#include "../../core/geometry.hpp"
#include "../kernels/summation_order.hpp"

namespace onedsl::native {

// Return the order for a geometry that has elements.
SummationOrder order_of(const Geometry& geometry, int lanes);

}  // namespace onedsl::native
