#include "plan.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "int_math.hpp"
#include "order.hpp"

namespace onedsl::native {
namespace {

// Short rows of columns have their coefficients repeated in the tables, up to this many entries, so
// that one loop writes several rows.
constexpr Index long_period = 512;
// The tensor must have this many rows for each repeated one, because filling the tables takes time.
constexpr Index rows_per_repetition = 512;
// Columns of so few rows have about as many coefficients and sums as elements. A worker alone runs
// panels of them one after the other: these then stay in cache, and in memory that malloc does not
// return to the system after each call.
constexpr Index few_rows = 16;
constexpr Index columns_in_panel = 1024;

DerivativeSource derivative_source(const Pointers& memory) {
  if (memory.in[Input::dst] != nullptr) return DerivativeSource::dst;
  return memory.in[Input::residual] != nullptr ? DerivativeSource::src_and_residual
                                               : DerivativeSource::src;
}

const Kernels& kernels_for(const Call& call, const Pointers& memory, Isa isa) {
  // The other types gain nothing from AVX512_BF16.
  if (isa == Isa::avx512_bf16 && call.data != DataType::bf16) isa = Isa::avx512;
  constexpr std::array kernels = {&baseline::kernels, &avx2::kernels, &avx512::kernels,
                                  &avx512_bf16::kernels};  // by Isa
  return kernels[static_cast<std::size_t>(isa)](
      {call.data, call.operation, call.attributes.activation, derivative_source(memory)});
}

bool needs_sums(const Call& call) {
  if (call.pass != Pass::both) return call.pass == Pass::reduce;
  return signature_of(call.operation).is_forward() ||
         call.statistics_kind == StatisticsKind::batch || call.outputs.has(Output::diff_gamma) ||
         call.outputs.has(Output::diff_beta);
}

// Return whether the reduce pass stores the gradient of the activation, where there are kernels for
// it.
bool stores_diff(const Call& call, const Pointers& memory, const SummationOrder& order) {
  // A vector that ends a shorter segment begins in another one, which another thread may write.
  if (!order.columns && (order.inner - 1) % order.segment + 1 < order.lanes) return false;
  if (info_of(call.attributes.activation).has_long_formula) return true;
  // One tensor less to read, if there is dst or a residual.
  return memory.out[Output::diff_residual] != nullptr &&
         derivative_source(memory) != DerivativeSource::src;
}

// Chooses the kernels of the passes.
void choose_kernels(Plan& plan, const Call& call, const Pointers& memory) {
  const PassKernels& storing =
      plan.order.columns ? plan.kernels.storing_columns : plan.kernels.storing_planes;
  const bool stores =
      call.pass == Pass::both && storing.reduce != nullptr && stores_diff(call, memory, plan.order);
  plan.passes = stores ? storing : plan.kernels.passes;
  if (!stores) return;
  plan.stored_diff =
      memory.out[Output::diff_residual] != nullptr ? Output::diff_residual : Output::diff_src;
}

// The tensors that a pass of a run reads and writes.
struct PassTensors {
  InputSet read;
  OutputSet read_back;  // which the reduce pass wrote
  OutputSet written;
};

// The tensors of both passes, even if the run has only one.
struct RunTensors {
  PassTensors reduce;
  PassTensors apply;
};

RunTensors tensors_of(const Call& call, const Pointers& memory, const Plan& plan) {
  const InputSet inputs = present(memory.in) & input_tensors;
  RunTensors tensors;
  if (call.pass != Pass::both || plan.needs_sums) {
    tensors.reduce.read = inputs & signature_of(call.operation).reduce_inputs;
  }
  tensors.apply.read = inputs;
  tensors.apply.written = present(memory.out) & output_tensors;
  if (call.statistics_kind == StatisticsKind::frozen) {
    tensors.apply.read = tensors.apply.read - InputSet(Input::src);
  }
  if (plan.stored_diff) {
    tensors.reduce.written = tensors.apply.read_back = OutputSet(*plan.stored_diff);
    tensors.apply.written = OutputSet(Output::diff_src);
    tensors.apply.read =
        tensors.apply.read - InputSet(Input::diff_dst, Input::residual, Input::dst);
  }
  return tensors;
}

Traffic traffic_of(const Call& call, const Pointers& memory, const RunTensors& tensors) {
  const auto count = [](const PassTensors& pass) {
    return static_cast<Index>(pass.read.count() + pass.read_back.count() + pass.written.count());
  };
  const auto& [reduce, apply] = tensors;
  Traffic traffic;
  traffic.type = call.data;
  traffic.reduced = count(reduce);
  traffic.applied = count(apply);
  traffic.tensors = count({reduce.read | apply.read, OutputSet(), reduce.written | apply.written});
  traffic.bytes = static_cast<double>(traffic.tensors * call.geometry.elements()) *
                  static_cast<double>(size_of(call.data));
  traffic.cold_outputs = memory.cold_outputs;
  return traffic;
}

// Return whether all tensors of a call satisfy predicate(pitch).
template <class Predicate>
bool all_pitches(const Call& call, const Pointers& memory, const Predicate& predicate) {
  const auto satisfy = [&](const auto port) { return predicate(call.pitches.of(port)); };
  return (present(memory.in) & input_tensors).all_of(satisfy) &&
         (present(memory.out) & output_tensors).all_of(satisfy);
}

bool may_write_non_temporal(const Call& call, const Pointers& memory, const Plan& plan) {
  if (plan.stored_diff) return *plan.stored_diff == Output::diff_residual;
  const Signature& signature = signature_of(call.operation);
  if (memory.out[signature.result] == memory.in[signature.in_place_input]) return false;
  // The stores are aligned for the result, and must also be aligned for the other written tensor.
  const void* const other = memory.out[Output::diff_residual];
  if (other == nullptr) return true;
  const auto line_offset = [](const void* const p) {
    return reinterpret_cast<std::uintptr_t>(p) % cache_line;
  };
  return line_offset(other) == line_offset(memory.out[Output::diff_src]) &&
         call.pitches.of(Output::diff_residual) == call.pitches.of(Output::diff_src);
}

Samples samples_of(const SummationOrder& order, const void* const src, const Pitch& pitch) {
  const Index elements = order.outer * order.inner;
  Samples samples;
  samples.src = src;
  samples.channel_stride = pitch.channel;
  samples.count = std::min(elements, Samples::most);
  for (Index i = 0; i < samples.count; ++i) {
    const Index element = (2 * i + 1) * elements / (2 * samples.count);
    samples.at[i] = element / order.inner * pitch.position + element % order.inner;
  }
  return samples;
}

Index channels_together(const Plan& plan) {
  const SummationOrder& order = plan.order;
  const bool in_panels =
      order.columns && order.repeat == 1 && order.rows <= few_rows && plan.schedule.workers == 1;
  if (!in_panels) return order.channels;
  // Whole cache lines.
  const Index panel = columns_in_panel / order.inner / divided_channels * divided_channels;
  return std::min(panel, order.channels);
}

BufferSizes sizes_of(const Plan& plan, const Pass pass) {
  const SummationOrder& order = plan.order;
  const Index channels = plan.channels_together;
  BufferSizes sizes;
  sizes.partials = pass == Pass::apply ? 0 : 2 * order.chunks * channels;
  sizes.even_first = order.columns && plan.kernels.splits_even_odd;
  sizes.entries = channels;
  sizes.workers = plan.schedule.workers;
  sizes.doubles = scratch_per_plane(order.lanes) * plan.schedule.block;
  if (!order.columns) return sizes;
  const Index pair = Index{2} * order.lanes;
  const Index rows = std::min(long_period / order.row, order.rows / rows_per_repetition);
  sizes.period = order.repeat * channels * order.inner * std::max<Index>(rows, 1);
  sizes.entries = round_up(sizes.period + pair, 2);
  const Index columns =
      order.repeat > 1 ? order.row : std::min(plan.schedule.block, channels) * order.inner;
  sizes.doubles = sizes.floats = scratch_per_column * round_up(columns, pair);
  return sizes;
}

}  // namespace

Plan plan_of(const Call& call, const Pointers& memory, const Machine& machine,
             const int num_threads) {
  Plan plan(kernels_for(call, memory, machine.isa));
  plan.order = order_of(call.geometry, plan.kernels.lanes);
  plan.needs_sums = needs_sums(call);
  choose_kernels(plan, call, memory);
  const RunTensors tensors = tensors_of(call, memory, plan);
  plan.traffic = traffic_of(call, memory, tensors);
  const Pitch dense = call.geometry.dense_pitch();
  plan.neighboring_positions =
      all_pitches(call, memory, [&](const Pitch& pitch) { return pitch == dense; });
  plan.neighboring_channels =
      all_pitches(call, memory, [&](const Pitch& pitch) { return pitch.channel == dense.channel; });
  plan.traffic.neighboring_channels = plan.neighboring_channels;
  if (plan.needs_sums && signature_of(call.operation).is_forward()) {
    plan.samples = samples_of(plan.order, memory.in[Input::src], call.pitches.of(Input::src));
  }
  plan.schedule = schedule_for(plan.order, plan.traffic, machine, num_threads);
  plan.non_temporal = plan.schedule.non_temporal && may_write_non_temporal(call, memory, plan);
  plan.channels_together = channels_together(plan);
  plan.sizes = sizes_of(plan, call.pass);
  return plan;
}

}  // namespace onedsl::native
