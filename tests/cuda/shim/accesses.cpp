// What the compiler's instrumentation for ThreadSanitizer calls, in place of ThreadSanitizer's own library.
#include <cstring>

#include "device.h"
#include "races.h"

namespace {
namespace shim = fwp::gpu::shim;

// Most launches are not watched: of their accesses this is all.
inline void note_access(const void* at, int bytes, bool write) {
  if (shim::races::watched) shim::note_access(at, bytes, write);
}
}  // namespace

#pragma GCC visibility push(hidden)
extern "C" {
#define FWP_ACCESSES(bytes)                                                                                            \
  void __tsan_read##bytes(const void* at) { note_access(at, bytes, false); }                                           \
  void __tsan_write##bytes(const void* at) { note_access(at, bytes, true); }                                           \
  void __tsan_unaligned_read##bytes(const void* at) { note_access(at, bytes, false); }                                 \
  void __tsan_unaligned_write##bytes(const void* at) { note_access(at, bytes, true); }
FWP_ACCESSES(1)
FWP_ACCESSES(2)
FWP_ACCESSES(4)
FWP_ACCESSES(8)
FWP_ACCESSES(16)
void __tsan_read_range(const void* at, unsigned long bytes) { note_access(at, int(bytes), false); }
void __tsan_write_range(const void* at, unsigned long bytes) { note_access(at, int(bytes), true); }
void* __tsan_memcpy(void* to, const void* from, unsigned long bytes) {
  note_access(from, int(bytes), false);
  note_access(to, int(bytes), true);
  return std::memcpy(to, from, bytes);
}
void* __tsan_memset(void* to, int value, unsigned long bytes) {
  note_access(to, int(bytes), true);
  return std::memset(to, value, bytes);
}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
// Guards of static variables; no kernel uses atomics.
unsigned char __tsan_atomic8_load(const volatile unsigned char* at, int) {
  return __atomic_load_n(at, __ATOMIC_SEQ_CST);
}
}
#pragma GCC visibility pop
