// One thread of control among several of a process: it runs until it changes to another.
#pragma once

#include <ucontext.h>

#include <cstdint>
#include <cstring>

namespace fwp::gpu::shim {

constexpr std::size_t stack_bytes = 512 * 1024;

#ifdef __x86_64__
// Saves the registers that a call keeps and the stack pointer to *from, and continues at `to`.
extern "C" void fwp_shim_switch(void** from, void* to);
asm(R"(
.text
.type fwp_shim_switch, @function
fwp_shim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size fwp_shim_switch, .-fwp_shim_switch
)");
struct Fibre {
  void* at = nullptr;
  void start(char* stack, void (*entry)()) {
    // The return address lies at 16 n, so that the entry finds the stack as after a call.
    void** top = reinterpret_cast<void**>((reinterpret_cast<std::uintptr_t>(stack) + stack_bytes) / 16 * 16) - 2;
    top[0] = reinterpret_cast<void*>(entry);
    top[1] = nullptr;
    at = top - 6;
    std::memset(at, 0, 6 * sizeof(void*));
  }
  static void change(Fibre& from, Fibre& to) { fwp_shim_switch(&from.at, to.at); }
};
#else
struct Fibre {
  ucontext_t context;
  void start(char* stack, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = stack_bytes;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
  }
  static void change(Fibre& from, Fibre& to) { swapcontext(&from.context, &to.context); }
};
#endif

}  // namespace fwp::gpu::shim
