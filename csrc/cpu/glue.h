// What the CPU's operators share: a Device of common/operators.h, and a thread's scratch.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace fwp {

struct Cpu {
  struct Guard {  // there is one device
    explicit Guard(at::Device) {}
  };
};

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
