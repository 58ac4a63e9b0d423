// Prints threads and shared memory of a block of every kernel, for the table in docs/kernels.md, with d_key = d_value =
// 64, d_dot = 256 and DPFP; favor and general kernels are given FAVOR+, the general ones also a state. The recurrences'
// kernels are given the largest d that they serve. Each kernel has one line: its name as the compiler writes it, threads,
// bytes.
#include <cstdio>

#include "../kernels/decode.cuh"
#include "../kernels/fold.cuh"
#include "../kernels/forward_pieces.cuh"
#include "../kernels/gradient_walk.cuh"
#include "../kernels/lstm_gate.cuh"
#include "../kernels/recurrence.cuh"
#include "../kernels/row_functions.cuh"

using namespace fwp::gpu;
using fwp::Map;

#define NAME(name) #name,
constexpr const char* rule_names[] = {FWP_CUDA_RULES(NAME)};

// Both kinds of call have these members.
template <class C> C call() {
  C c{};
  c.map = Map::dpfp;
  c.d_key = c.d_value = 64;
  c.nu = 2;
  c.d_dot = 2 * c.nu * c.d_key;
  return c;
}

template <class P, int LT, Kind K> void print_kernels(const char* operands) {
  constexpr const char* names[] = {"plain", "favor", "state", "general"};
  for (bool backward : {false, true})
    for (const char* const& rule : rule_names) {
      Call c = call<Call>();
      float state = 0;
      c.rule = static_cast<fwp::Rule>(&rule - rule_names);  // a place in FWP_CUDA_RULES is a number
      if (!exists(LT, c.rule, K, backward)) continue;
      c.targets = c.sources = c.segment = LT;
      c.resident = 1;
      if (has_states<K>) c.W = &state;
      if (K == Kind::favor || K == Kind::general) c.map = Map::favor;
      c.together = K == Kind::favor;
      if (c.map == Map::favor) c.nu = 0, c.m = c.d_dot / 2;
      lay_features(c, backward);
      std::printf("%s_kernel<%s, %d, %s, %s>\t%d\t%d\n", backward ? "backward" : "forward", operands, LT,
                  rule, names[int(K)], 2 * LT * (backward ? backward_teams_of(LT, c.rule, K) : forward_teams<K>),
                  bytes_of<P>(c, backward));
      if (!has_states<K>) continue;
      const char* kernel = backward ? "preparation" : "walk";
      std::printf("%s_kernel<%s, %d, %s, %s>\t%d\t%d\n", kernel, operands, LT, rule, names[int(K)],
                  2 * LT * (backward ? 1 : forward_teams<K>), backward ? bytes_of<P>(c, true) : walk_bytes_of<P>(c));
      if (backward || K != Kind::state) continue;
      const auto print_piece = [&](const char* name, int warps, int bytes) {
        std::printf("%s_kernel<%s, %d, %s, %s>\t%d\t%d\n", name, operands, LT, rule, names[int(K)], 32 * warps, bytes);
      };
      print_piece("keys", LT / 16, keys_bytes_of<P, LT, K>(c));
      print_piece("write", LT / 8, bytes_of<P>(c, false));
      print_piece("read", LT / 8, bytes_of<P>(c, false));
      print_piece("inverted_walk", LT / 8, walk_bytes_of<P>(c));
    }
}
template <class P, int LT> void print_lengths(const char* operands) {
  print_kernels<P, LT, Kind::plain>(operands);
  if (std::is_same_v<P, Half>) print_kernels<P, LT, Kind::favor>(operands);
  print_kernels<P, LT, Kind::state>(operands);
  print_kernels<P, LT, Kind::general>(operands);
}
template <class P> void print(const char* operands) {
  print_lengths<P, 16>(operands);
  print_lengths<P, 32>(operands);
  print_lengths<P, 64>(operands);
  print_lengths<P, longest_segment>(operands);
  DecodeCall c = call<DecodeCall>();
  c.d_cached = c.d_key;
  for (const char* rule : rule_names)
    std::printf("decode_kernel<%s, %s>\t%d\t%d\n", operands, rule, decode_threads, decode_bytes_of<P>(c));
  std::printf("fold_kernel<%s>\t%d\t%d\n", operands, decode_threads, int(sizeof(FoldShared)));
}

template <int N> void print_recurrences() {
  RecurrenceCall c{};
  c.d = RecurrentBlock<N>::rows;
  const auto print_of = [&](const char* name, int warps, int bytes) {
    std::printf("%s_kernel<%d>\t%d\t%d\n", name, N, 32 * warps, bytes);
  };
  const auto print = [&](const char* name, int bytes) { print_of(name, recurrent_warps(c), bytes); };
  print("recur", Recurrence<N>::forward_bytes(c));
  print("recur_backward", Recurrence<N>::backward_bytes(c));
  print_of("recur_lstm", lstm_warps<N>(c), Lstm<N>::forward_bytes(c));
  print_of("recur_lstm_backward", lstm_warps<N>(c), Lstm<N>::backward_bytes(c));
  print("recur_lstm_gate_backward", LstmGate<N>::backward_bytes(c));
}

int main() {
  print<Half>("Half");
  print<Single>("Single");
  print_recurrences<1>();
  print_recurrences<2>();
  print_recurrences<4>();
  for (const char* function : {"SoftmaxPair", "ToLengthOne", "EluToLengthOne", "ToRmsOne"})
    for (const char* name : {"row", "row_backward"})
      std::printf("%s_kernel<%s>\t%d\t0\n", name, function, 32 * row_warps);
}
