// Shared by the CPU's operators: filling in and running a call, a thread's scratch, and a task for each head.
#pragma once

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "../common/fields.h"
#include "kernel_table.h"

namespace fwp {

// Makes a call C<float> or C<double>, by the dtype of x (called `name` in errors), and passes it to run(call, T()).
template <template <class> class C, class Describe, class Run>
void with_call(const char* op, const char* name, const Tensor& x, const Describe& describe, const Run& run) {
  check_type(op, name, x.scalar_type());
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "fwp", [&] {
    C<scalar_t> call{};
    Fields fields(op, x);
    describe(fields, call);
    if (fields.ready()) run(call, scalar_t());
  });
}

// A thread's scratch. It is kept between calls, because fresh pages cost as much as the arithmetic of a sentence.
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
    block.bytes = 0;  // in case there is no memory
    block.memory.reset(new char[bytes]);
    block.bytes = bytes;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(block.memory.get());
  return reinterpret_cast<T*>((address + alignment - 1) / alignment * alignment);
}

// Calls head(c, batch row, head, scratch of `size` numbers) for every head of every batch row.
template <class T, class C, class Head> void for_each_head(const C& c, std::size_t size, Head head) {
  at::parallel_for(0, c.batch * c.heads, 1, [&](int64_t first, int64_t last) {
    T* own = scratch<T>(size);
    for (int64_t i = first; i < last; ++i) head(c, i / c.heads, i % c.heads, own);
  });
}

// Runs a HeadKernel.
template <class T, class C> void for_each_head(const C& c, const HeadKernel<C, T>& kernel) {
  for_each_head<T>(c, kernel.scratch(c), kernel.run);
}

}  // namespace fwp
