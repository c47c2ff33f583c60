#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "pytorch.hpp"
#include "tensors.hpp"

// Arguments and results of kernels, in the form in which PyTorch's dispatcher passes them.
namespace onedsl::torch {

// An argument of an op, which the kernel owns, by the parameter type of the function behind it.
// This template is for bool and double.
template <class Parameter>
class Argument {
 public:
  explicit Argument(const Value value) noexcept { std::memcpy(&value_, &value, sizeof value_); }
  Parameter get() const noexcept { return value_; }

 private:
  Parameter value_ = {};
};

template <>
class Argument<const Tensor&> {
 public:
  explicit Argument(const Value value) noexcept : handle_(reinterpret_cast<Tensor*>(value)) {}
  const Tensor& get() const noexcept { return *handle_; }

 private:
  OwnedTensor handle_;
};

template <>
class Argument<const OptionalTensor&> {
 public:
  explicit Argument(const Value value) noexcept : pointer_(reinterpret_cast<Value*>(value)) {
    if (!pointer_) return;
    handle_.reset(reinterpret_cast<Tensor*>(*pointer_));
    tensor_.emplace(*handle_);
  }
  const OptionalTensor& get() const noexcept { return tensor_; }

 private:
  std::unique_ptr<Value> pointer_;
  OwnedTensor handle_;
  OptionalTensor tensor_;
};

template <>
class Argument<std::optional<double>> {
 public:
  explicit Argument(const Value value) noexcept : pointer_(reinterpret_cast<Value*>(value)) {}
  std::optional<double> get() const noexcept {
    if (!pointer_) return std::nullopt;
    return Argument<double>(*pointer_).get();
  }

 private:
  std::unique_ptr<Value> pointer_;
};

struct DeleteText {
  void operator()(Text* const text) const noexcept { api->delete_text(text); }
};

template <>
class Argument<const std::optional<std::string>&> {
 public:
  explicit Argument(const Value value) noexcept : pointer_(reinterpret_cast<Value*>(value)) {
    if (pointer_) handle_.reset(reinterpret_cast<Text*>(*pointer_));
  }
  std::optional<std::string> get() const {
    if (!handle_) return std::nullopt;
    const char* characters = nullptr;
    throw_if(api->characters(handle_.get(), &characters));
    return characters;
  }

 private:
  std::unique_ptr<Value> pointer_;
  std::unique_ptr<Text, DeleteText> handle_;
};

struct DeleteList {
  void operator()(List* const list) const noexcept { api->delete_list(list); }
};

template <>
class Argument<std::array<bool, 3>> {
 public:
  explicit Argument(const Value value) noexcept : handle_(reinterpret_cast<List*>(value)) {}
  std::array<bool, 3> get() const {
    std::array<bool, 3> flags = {};
    for (std::size_t i = 0; i < flags.size(); ++i) {
      Value item = 0;
      throw_if(api->list_item(handle_.get(), i, &item));
      flags[i] = Argument<bool>(item).get();
    }
    return flags;
  }

 private:
  std::unique_ptr<List, DeleteList> handle_;
};

inline Value take(const Value*& values) noexcept { return *values++; }

// Takes ownership of an op's arguments, converts them to the parameters' types, and calls
// use(arguments...).
template <class Result, class... Parameters, class Use>
void with_arguments(const Value* values, Result (*)(Parameters...), const Use& use) {
  const std::tuple<Argument<Parameters>...> arguments{Argument<Parameters>(take(values))...};
  std::apply([&](const auto&... argument) { use(argument.get()...); }, arguments);
}

template <std::size_t count>
using Results = std::array<OwnedTensor, count>;

// Calls a kernel of PyTorch and moves its results into handles, which are allocated before the call
// so that nothing can fail after it. `kernel` returns a tuple of tensors.
template <std::size_t count, class Kernel, class... Arguments>
Results<count> call(const Kernel& kernel, const Arguments&... arguments) {
  Results<count> handles;
  for (OwnedTensor& handle : handles) handle = make(api->undefined);
  const auto tensors = kernel(arguments...);
  OwnedTensor* next = handles.data();
  std::apply([&](const auto&... tensor) { (((*next++)->impl = tensor.impl), ...); }, tensors);
  return handles;
}

template <std::size_t count>
void write_results(Value* const values, Results<count> results) {
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = reinterpret_cast<Value>(results[i].release());
  }
}

}  // namespace onedsl::torch
