// The launches for long sentences: their workspace and their order. No torch header.
#pragma once

#include <type_traits>

#include "kernels/call.h"

namespace fwp::gpu {

// Lays out the workspace of the call's group of heads; returns its size in bytes.
inline int64_t lay(Call& c, char* base) {
  int64_t used = 0;
  const auto take = [&](auto*& pointer, int64_t rows, int64_t columns) {
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(base + used);
    used += (c.group * rows * columns * int64_t(sizeof *pointer) + 255) / 256 * 256;
  };
  const auto take_halves = [&](Halves& halves, int64_t rows, int64_t columns) {
    take(halves.numbers, rows, columns);
    take(halves.powers, rows / 16, columns / 16);
  };
  const int64_t keys = key_rows(c), queries = query_rows(c), inputs = inputs_of(c), features = features_of(c);
  const int64_t columns = columns_of(c);
  const int64_t chunks = chunks_of(c), kept = chunks > 1 || c.initial_W ? chunks * features : 0;
  take_halves(c.x_q, queries, inputs);
  take_halves(c.x_k, keys, inputs);
  take(c.x_scales, is_dpfp(c) ? queries + keys : 0, 1);
  take_halves(c.written, keys, columns);
  take_halves(c.states, kept, columns);
  take(c.carried, kept || c.W || c.grad_W ? features : 0, columns);
  if (corrects(c.rule)) {
    take_halves(c.inverse, chunks * chunk, chunk);
    take(c.rates, keys, 1);
    take(c.norms, keys, 1);
  }
  if (!c.backward) return used;
  take_halves(c.grad_read, queries, columns);
  take_halves(c.grad_rows, keys, columns);
  take_halves(c.grad_states, kept || c.grad_W ? chunks * features : 0, columns);
  take(c.grad_written, keys, columns);
  take(c.grad_x_q, queries, inputs);
  take(c.grad_x_k, keys, inputs);
  take(c.grad_norms, keys, 1);
  take(c.grad_decay, decays(c.rule) ? chunks * chunk : 0, chunk + 1);
  return used;
}

// The launches of a group, one after the other, until one fails.
struct Launches {
  Call call;
  void* stream;
  const char* error = nullptr;

  template <class Run> Launches& then(Run run, Stage step, int first = 0, int end = 0) {
    call.slice = first;
    call.slices = end - first;
    if (!error) error = run(step, call, stream);
    return *this;
  }
  // In a backward pass, `outputs` computes the gradients of numerators and denominators, and dU from them.
  void forward() {
    const int values = first_slice(call), end = walk_slices_of(call);
    then(run_rows, Stage::rows);
    if (rates_depend_on_z(call)) then(run_forward, Stage::walk, 0, values);
    if (corrects(call.rule)) then(run_forward, Stage::keys);
    then(run_forward, Stage::walk, rates_depend_on_z(call) ? values : 0, end).then(run_forward, Stage::outputs);
  }
  void backward() {
    const int first = rates_depend_on_z(call) ? first_slice(call) : 0;
    forward();
    then(run_backward, Stage::walk_back, first, walk_slices_of(call));
    then(run_backward, Stage::chunks_back, first, slices_of(call));
    if (first > 0) then(run_backward, Stage::walk_back, 0, 1).then(run_backward, Stage::chunks_back, 0, 1);
    then(run_rows, Stage::rows_back);
  }
};

}  // namespace fwp::gpu
