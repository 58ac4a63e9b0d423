#include "../recurrences/recurrence.cuh"

namespace fwp::gpu {
namespace {

template <int N> const char* launch_rows(RecurrenceKernel kernel, const RecurrenceCall& c, void* stream) {
  const int blocks = int(c.batch * c.heads), threads = 32 * recurrent_warps(c);
  const auto start = [&](void (*kernel)(RecurrenceCall), int bytes) {
    return launch(kernel, blocks, threads, bytes, static_cast<Stream>(stream), c);
  };
  if (kernel == RecurrenceKernel::forward) return start(recur_kernel<N>, Recurrence<N>::forward_bytes(c));
  return start(recur_backward_kernel<N>, Recurrence<N>::backward_bytes(c));
}

}  // namespace

const char* launch_recurrence(RecurrenceKernel kernel, const RecurrenceCall& c, void* stream) {
  if (c.d <= 32) return launch_rows<1>(kernel, c, stream);
  if (c.d <= 64) return launch_rows<2>(kernel, c, stream);
  return launch_rows<4>(kernel, c, stream);
}

}  // namespace fwp::gpu
