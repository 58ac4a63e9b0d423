// Threads and shared memory of a block of every kernel, for the table in docs/kernels.md: DPFP, d_key = d_value = 64.
// One line a kernel: its name as the compiler writes it, threads, bytes.
#include <cstdio>

#include "../kernels/head.cuh"

using namespace fwp::gpu;

static Call call;

template <class P, int LT> void print(const char* operands) {
  for (bool backward : {false, true})
    for (bool delta : {false, true})
      for (bool general : {false, true}) {
        if (general && LT < smallest_general_block) continue;
        Shared<P, LT> shared;
        std::printf("%s_kernel<%s, %d, %s, %s>\t%d\t%d\n", backward ? "backward" : "forward", operands, LT,
                    delta ? "true" : "false", general ? "true" : "false", 2 * LT, shared.lay(nullptr, call, backward));
      }
}
template <class P> void print_all(const char* operands) {
  print<P, 16>(operands);
  print<P, 32>(operands);
  print<P, 64>(operands);
  print<P, longest_chunk>(operands);
}

int main() {
  call.map = Map::dpfp;
  call.d_key = call.d_value = 64;
  print_all<Half>("Half");
  print_all<Single>("Single");
}
