#include "frozen.hpp"

#include <array>
#include <unordered_map>

#include "engine.hpp"

namespace onedsl::onednn {

FrozenPrimitive::FrozenPrimitive(const dnnl::memory::dims& dims, const bool channels_last,
                                 const DataType data, const float epsilon, const bool sums)
    : stream_(cpu_engine()) {
  translate("building batch_normalization_backward", [&] {
    using Flags = dnnl::normalization_flags;
    using Data = dnnl::memory::data_type;
    constexpr std::array data_types = {Data::f32, Data::bf16, Data::f16};  // by DataType
    using Tag = dnnl::memory::format_tag;
    data_ = {dims, data_types[static_cast<std::size_t>(data)],
             channels_last ? Tag::nhwc : Tag::nchw};
    channels_ = {{dims[1]}, Data::f32, Tag::a};
    const Flags flags = Flags::use_global_stats | Flags::use_scale | Flags::use_shift;
    const dnnl::batch_normalization_forward::primitive_desc forward(
        cpu_engine(), dnnl::prop_kind::forward_training, data_, data_, epsilon, flags);
    const auto kind = sums ? dnnl::prop_kind::backward : dnnl::prop_kind::backward_data;
    primitive_ = dnnl::batch_normalization_backward(
        {cpu_engine(), kind, data_, data_, data_, epsilon, flags, forward});
  });
}

void FrozenPrimitive::execute(const Ports& ports) {
  translate("running batch_normalization_backward", [&] {
    const auto input = [&](const dnnl::memory::desc& desc, const Input port) {
      // oneDNN has one type for inputs and outputs; it does not write to inputs.
      return dnnl::memory(desc, cpu_engine(), const_cast<void*>(ports.in[port]));
    };
    const auto output = [&](const dnnl::memory::desc& desc, const Output port) {
      return dnnl::memory(desc, cpu_engine(), ports.out[port]);
    };
    const std::unordered_map<int, dnnl::memory> arguments = {
        {DNNL_ARG_SRC, input(data_, Input::src)},
        {DNNL_ARG_DIFF_DST, input(data_, Input::diff_dst)},
        {DNNL_ARG_MEAN, input(channels_, Input::mean)},
        {DNNL_ARG_VARIANCE, input(channels_, Input::variance)},
        {DNNL_ARG_SCALE, input(channels_, Input::gamma)},
        {DNNL_ARG_DIFF_SRC, output(data_, Output::diff_src)},
        // backward_data does not compute these, but rejects calls without them.
        {DNNL_ARG_DIFF_SCALE, output(channels_, Output::diff_gamma)},
        {DNNL_ARG_DIFF_SHIFT, output(channels_, Output::diff_beta)},
    };
    primitive_.execute(stream_, arguments);
    stream_.wait();
  });
}

}  // namespace onedsl::onednn
