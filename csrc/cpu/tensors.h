// From tensors to what the kernels see, and a thread's scratch.
#pragma once

#include <memory>

#include "../common/rows.h"
#include "call.h"

namespace fwp {

// T: the tensor's type, which the caller has checked, or one of the same bits (Bf16).
template <class T> Rows<const T> rows(const Tensor& x) {
  return {static_cast<const T*>(x.const_data_ptr()), x.stride(0), x.stride(1), x.dim() > 2 ? x.stride(2) : 0};
}
template <class T> Rows<T> mutable_rows(const Tensor& x) {
  return {static_cast<T*>(x.mutable_data_ptr()), x.stride(0), x.stride(1), x.stride(2)};
}
template <class T> const T* pointer(const OptionalTensor& x) { return x ? x->const_data_ptr<T>() : nullptr; }

// A thread's scratch, kept between calls: fresh pages cost as much as a sentence's arithmetic.
template <class T> T* scratch(std::size_t count) {
  constexpr std::size_t alignment = 64;
  struct Block {
    std::unique_ptr<char[]> memory;
    std::size_t bytes = 0;
  };
  static thread_local Block block;
  const std::size_t bytes = count * sizeof(T) + alignment;
  if (block.bytes < bytes) {
    block.memory.reset();
    block.memory.reset(new char[bytes]);
    block.bytes = bytes;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(block.memory.get());
  return reinterpret_cast<T*>((address + alignment - 1) / alignment * alignment);
}

}  // namespace fwp
