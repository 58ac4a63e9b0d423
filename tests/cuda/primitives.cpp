// One small kernel for each primitive of kernels/device.cuh, and kernels that break the rules which the shim watches.
#include <kernels/device.cuh>

using namespace fwp::gpu;

namespace {

struct Call {
  const void* in;
  float* out;
};

FWP_KERNEL(32, 1) multiply_kernel(FWP_CONSTANT Call c) {  // C (16, 8) = A (16, 16) B (16, 8)
  const int l = thread_index(), g = l / 4, t = l % 4;
  uint16_t* A = reinterpret_cast<uint16_t*>(shared_memory(16 * 16 * 2 + 8 * 24 * 2));
  uint16_t* B = A + 16 * 16;  // transposed: (8, 16), rows of 24
  const uint16_t* in = static_cast<const uint16_t*>(c.in);
  for (int i = l; i < 16 * 16; i += 32) A[i] = in[i];
  for (int i = l; i < 8 * 16; i += 32) B[i / 16 * 24 + i % 16] = in[16 * 16 + i % 16 * 8 + i / 16];
  sync_warp();
  uint32_t a[4], b[4];
  const int i = l / 8, r = l % 8;
  load_matrices(a, A + (r + 8 * (i & 1)) * 16 + 8 * (i >> 1));
  load_matrices(b, B + r * 24 + 8 * (i & 1));
  float x[4] = {};
  mma_half(x, a, b[0], b[1]);
  for (int j = 0; j < 4; ++j) c.out[(g + 8 * (j >> 1)) * 8 + 2 * t + (j & 1)] = x[j];
}

FWP_KERNEL(32, 1) transposed_kernel(FWP_CONSTANT Call c) {  // out[lane][i] = what the lane gets of matrix i
  const int l = thread_index();
  uint16_t* rows = reinterpret_cast<uint16_t*>(shared_memory(32 * 8 * 2));
  for (int i = 0; i < 8; ++i) rows[l * 8 + i] = uint16_t(l * 8 + i);
  sync_warp();
  uint32_t x[4];
  load_matrices_transposed(x, rows + l * 8);
  for (int i = 0; i < 4; ++i) {
    c.out[l * 8 + 2 * i] = float(x[i] & 0xffff);
    c.out[l * 8 + 2 * i + 1] = float(x[i] >> 16);
  }
}

FWP_KERNEL(32, 1) shuffle_kernel(FWP_CONSTANT Call c) {
  const int l = thread_index();
  const float x = static_cast<const float*>(c.in)[l];
  c.out[l] = shuffle_xor(x, 5);
  c.out[32 + l] = shuffle(x, (l + 3) % 32);
}

FWP_KERNEL(32, 1) round_kernel(FWP_CONSTANT Call c) {
  for (int i = thread_index(); i < 4096; i += 32) {
    const float x = static_cast<const float*>(c.in)[i];
    c.out[i] = from_half(to_half(x));
    c.out[4096 + i] = from_bfloat16(to_bfloat16(x));
  }
}

FWP_KERNEL(32, 1) halves_kernel(FWP_CONSTANT Call c) {  // of 3 x 1024 words, two halves each
  const uint32_t* in = static_cast<const uint32_t*>(c.in);
  for (int i = thread_index(); i < 1024; i += 32) {
    const uint32_t x = in[i], y = in[1024 + i], z = in[2048 + i];
    const uint32_t found[] = {add_halves(x, y),     multiply_halves(x, y),  fma_halves(x, y, z), positive_product(x, y),
                              larger_numbers(x, y), chosen(signs(x), y, z), not_zero(x)};
    for (int n = 0; n < 7; ++n) {
      c.out[2 * (1024 * n + i)] = first_half(found[n]);
      c.out[2 * (1024 * n + i) + 1] = second_half(found[n]);
    }
  }
}

template <bool barrier> FWP_KERNEL(64, 1) neighbour_kernel(FWP_CONSTANT Call c) {
  float* shared = reinterpret_cast<float*>(shared_memory(64 * 4));
  shared[thread_index()] = float(thread_index());
  if (barrier) sync_block();
  c.out[thread_index()] = shared[63 - thread_index()];
}

FWP_KERNEL(64, 1) again_kernel(FWP_CONSTANT Call c) {  // the same shared memory twice
  float* shared = reinterpret_cast<float*>(shared_memory(64 * 4));
  for (int n = 0; n < 2; ++n) {
    shared[thread_index()] = float(thread_index());
    sync_block();
    c.out[thread_index()] = shared[63 - thread_index()];
    sync_block();
  }
}

FWP_KERNEL(32, 1) divergent_kernel(FWP_CONSTANT Call) {
  if (thread_index() < 16) sync_warp();
  else sync_block();
}
FWP_KERNEL(32, 1) two_places_kernel(FWP_CONSTANT Call) {
  if (thread_index() < 16) sync_warp();
  else sync_warp();
}
FWP_KERNEL(64, 1) early_end_kernel(FWP_CONSTANT Call) {
  if (thread_index() < 32) sync_block();
}
// Each thread copies four numbers, and reads its neighbour's before or after they have arrived.
template <bool early> FWP_KERNEL(32, 1) copy_kernel(FWP_CONSTANT Call c) {
  float* shared = reinterpret_cast<float*>(shared_memory(32 * 16));
  const int i = thread_index();
  start_copy(shared + 4 * i, static_cast<const float*>(c.in) + 4 * i);
  if (!early) copies_arrived();
  sync_warp();
  for (int e = 0; e < 4; ++e) c.out[4 * i + e] = shared[4 * (31 - i) + e];
  if (early) copies_arrived();
}
FWP_KERNEL(32, 1) lost_copy_kernel(FWP_CONSTANT Call c) { start_copy(shared_memory(512) + 16 * thread_index(), c.in); }
FWP_KERNEL(32, 1) crooked_copy_kernel(FWP_CONSTANT Call c) { start_copy(shared_memory(512) + 8, c.in); }
FWP_KERNEL(32, 1) overrun_kernel(FWP_CONSTANT Call) { shared_memory(64)[64 + thread_index()] = 1; }
FWP_KERNEL(32, 1) greedy_kernel(FWP_CONSTANT Call) { shared_memory(128)[thread_index()] = 1; }
FWP_KERNEL(32, 1) crooked_kernel(FWP_CONSTANT Call) {
  uint32_t x[4];
  load_matrices(x, shared_memory(64) + 2);
}

struct Entry {
  void (*kernel)(Call);
  int threads, shared;
};
const Entry entries[] = {
    {multiply_kernel, 32, 896},  {transposed_kernel, 32, 512},      {shuffle_kernel, 32, 0},
    {round_kernel, 32, 0},       {neighbour_kernel<true>, 64, 256}, {neighbour_kernel<false>, 64, 256},
    {divergent_kernel, 32, 0},   {two_places_kernel, 32, 0},        {early_end_kernel, 64, 0},
    {overrun_kernel, 32, 64},    {greedy_kernel, 32, 64},           {crooked_kernel, 32, 64},
    {again_kernel, 64, 256},     {copy_kernel<false>, 32, 512},     {copy_kernel<true>, 32, 512},
    {lost_copy_kernel, 32, 512}, {crooked_copy_kernel, 32, 512},    {halves_kernel, 32, 0},
};

}  // namespace

extern "C" const char* run_primitive(int number, int blocks, const void* in, float* out) {
  const Entry& e = entries[number];
  return launch(e.kernel, blocks, e.threads, e.shared, nullptr, Call{in, out});
}
