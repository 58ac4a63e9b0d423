#include "../recurrences/lstm_gate.cuh"

namespace fwp::gpu {
namespace {

template <int N> const char* launch_rows(RecurrenceKernel kernel, const LstmCall& c, void* stream) {
  const auto start = [&](void (*kernel)(LstmCall), const LstmCall& c, int warps, int bytes) {
    return launch(kernel, int(c.batch * c.heads), 32 * warps, bytes, static_cast<Stream>(stream), c);
  };
  const int warps = lstm_warps<N>(c);
  if (kernel == RecurrenceKernel::forward) return start(recur_lstm_kernel<N>, c, warps, Lstm<N>::forward_bytes(c));
  LstmCall of_gates = c;
  of_gates.heads *= lstm_gates;
  const char* error = start(recur_lstm_backward_kernel<N>, c, warps, Lstm<N>::backward_bytes(c));
  if (error) return error;
  return start(recur_lstm_gate_backward_kernel<N>, of_gates, recurrent_warps(c), LstmGate<N>::backward_bytes(c));
}

}  // namespace

const char* launch_lstm(RecurrenceKernel kernel, const LstmCall& c, void* stream) {
  if (c.d <= 32) return launch_rows<1>(kernel, c, stream);
  if (c.d <= 64) return launch_rows<2>(kernel, c, stream);
  return launch_rows<4>(kernel, c, stream);
}

}  // namespace fwp::gpu
