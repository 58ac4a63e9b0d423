// All device primitives that the kernels use, under one name each. This file defines them for nvcc;
// tests/cuda/shim/device.h defines them for a C++ compiler, so that tests can run the same kernel sources on the CPU.
// All 32 lanes of a warp take part in every primitive that exchanges data between lanes. Kernels use nothing else of
// CUDA.
//
// mma.sync fragments, lane = 4 g + t:   A 16 x 16: (g, 2t..) (g+8, 2t..) (g, 2t+8..) (g+8, 2t+8..), two numbers each
//                                       B 16 x 8:  (2t.., g) (2t+8.., g), two numbers each
//                                       C 16 x 8:  (g, 2t) (g, 2t+1) (g+8, 2t) (g+8, 2t+1), float
#pragma once

#include <cstdint>

#ifdef __CUDACC__

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define FWP_DEVICE __device__ __forceinline__
#define FWP_BOTH __host__ __device__ __forceinline__
#define FWP_KERNEL(threads, blocks) __global__ __launch_bounds__(threads, blocks) void  // blocks: at once, at least
#define FWP_CONSTANT const __grid_constant__
#define FWP_UNROLL _Pragma("unroll") for  // (..), a loop that is unrolled completely
#define FWP_ROLLED _Pragma("unroll 1") for  // a loop that is not unrolled

namespace fwp::gpu {

using Stream = cudaStream_t;

FWP_DEVICE int thread_index() { return threadIdx.x; }
FWP_DEVICE int block_index() { return blockIdx.x; }
// Is the same in all lanes of a warp, which the compiler knows from the shuffle.
FWP_DEVICE int warp_index() { return __shfl_sync(~0u, threadIdx.x / 32, 0); }

// Returns x. The compiler does not know how it was computed, so it keeps x instead of computing it again at each use.
FWP_DEVICE int kept(int x) {
  asm("" : "+r"(x));
  return x;
}

// Dynamic shared memory of the block, 16-byte aligned; `bytes` is what the kernel will use of it.
FWP_DEVICE char* shared_memory(int /*bytes*/) {
  extern __shared__ __align__(16) char fwp_shared_memory[];
  return fwp_shared_memory;
}

// The place of a barrier in the sources, which only the shim uses; a function that serves as a barrier passes it on.
struct Site {
  static FWP_DEVICE Site here() { return {}; }
};
FWP_DEVICE void sync_block(Site = {}) { __syncthreads(); }  // all threads, at the same place of the kernel
FWP_DEVICE void sync_warp() { __syncwarp(); }
FWP_DEVICE float shuffle_xor(float x, int mask) { return __shfl_xor_sync(~0u, x, mask); }
FWP_DEVICE float shuffle(float x, int lane) { return __shfl_sync(~0u, x, lane); }
FWP_DEVICE float largest_of_warp(float x) {  // of numbers that are not negative
  return __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(x)));
}

// Stops the kernel if `holds` is false; the process cannot use the device afterwards.
FWP_DEVICE void require(bool holds, const char* /*what*/) {
  if (!holds) __trap();
}

FWP_DEVICE float float_of(uint32_t x) { return __uint_as_float(x); }
FWP_DEVICE uint32_t bits_of(float x) { return __float_as_uint(x); }

FWP_DEVICE uint16_t to_half(float x) { return __half_as_ushort(__float2half_rn(x)); }
FWP_DEVICE float from_half(uint16_t x) { return __half2float(__ushort_as_half(x)); }
FWP_DEVICE uint16_t to_bfloat16(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
FWP_DEVICE float from_bfloat16(uint16_t x) { return __uint_as_float(uint32_t(x) << 16); }
// Two numbers in a word, the first one in the low bits.
FWP_DEVICE uint32_t pack_bfloat16s(float a, float b) {
  const __nv_bfloat162 x = __floats2bfloat162_rn(a, b);
  return *reinterpret_cast<const uint32_t*>(&x);
}
// The same with halves.
FWP_DEVICE __half2 halves(uint32_t x) { return *reinterpret_cast<const __half2*>(&x); }
FWP_DEVICE uint32_t word_of(__half2 x) { return *reinterpret_cast<const uint32_t*>(&x); }
FWP_DEVICE uint32_t pack_halves(float a, float b) { return word_of(__floats2half2_rn(a, b)); }
FWP_DEVICE float first_half(uint32_t x) { return from_half(uint16_t(x)); }
FWP_DEVICE float second_half(uint32_t x) { return from_half(uint16_t(x >> 16)); }
FWP_DEVICE void split_halves(uint32_t x, float& first, float& second) {
  uint16_t a, b;
  asm("mov.b32 {%0, %1}, %2;" : "=h"(a), "=h"(b) : "r"(x));
  first = from_half(a), second = from_half(b);
}
FWP_DEVICE uint32_t multiply_halves(uint32_t x, uint32_t y) { return word_of(__hmul2(halves(x), halves(y))); }
FWP_DEVICE uint32_t add_halves(uint32_t x, uint32_t y) { return word_of(__hadd2(halves(x), halves(y))); }
FWP_DEVICE uint32_t fma_halves(uint32_t x, uint32_t y, uint32_t z) {  // x y + z
  return word_of(__hfma2(halves(x), halves(y), halves(z)));
}
// x y where that is above 0, else 0.
FWP_DEVICE uint32_t positive_product(uint32_t x, uint32_t y) {
  return word_of(__hfma2_relu(halves(x), halves(y), halves(0)));
}
FWP_DEVICE uint32_t not_zero(uint32_t x) { return __hneu2_mask(halves(x), halves(0)); }  // all bits of halves, or none
// The larger of two halves, the other one where one is NaN.
FWP_DEVICE uint32_t larger_numbers(uint32_t x, uint32_t y) { return word_of(__hmax2(halves(x), halves(y))); }
FWP_DEVICE uint32_t signs(uint32_t x) {  // all bits of halves that have the sign bit, none of others
  uint32_t y;
  asm("prmt.b32 %0, %1, %1, 0xbb99;" : "=r"(y) : "r"(x));
  return y;
}
FWP_DEVICE uint32_t chosen(uint32_t mask, uint32_t x, uint32_t y) {  // bits of x where the mask has any, else of y
  uint32_t z;
  asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(z) : "r"(mask), "r"(x), "r"(y));
  return z;
}
// Halves of bfloat16s times a power of two, which both halves of the word `power` have as a bfloat16.
FWP_DEVICE uint32_t halves_of_bfloat16s(uint32_t x, uint32_t power) {
  uint32_t y;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(power), "r"(0x80008000u));
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "r"(y & 0xffff0000u), "r"(y << 16));
  return x;
}
// The second number of x and the first one of y.
FWP_DEVICE uint32_t straddle(uint32_t x, uint32_t y) { return __byte_perm(x, y, 0x5432); }
// 16 bytes at an address that is a multiple of 16, in one access.
struct Eight {
  uint32_t w[4];
};
FWP_DEVICE Eight eight(const void* at) {
  const uint4 x = *static_cast<const uint4*>(at);
  return {{x.x, x.y, x.z, x.w}};
}
FWP_DEVICE void put_eight(void* at, const Eight& x) {
  *static_cast<uint4*>(at) = make_uint4(x.w[0], x.w[1], x.w[2], x.w[3]);
}
FWP_DEVICE float exponential(float x) { return expf(x); }
FWP_DEVICE float square_root(float x) { return sqrtf(x); }
FWP_DEVICE float absolute(float x) { return fabsf(x); }
FWP_DEVICE float larger(float x, float y) { return fmaxf(x, y); }  // the other one where one is NaN

// Starts to copy 16 bytes of memory into shared memory; both addresses are multiples of 16. The thread that starts a
// copy can read it after copies_arrived, other threads after a barrier that follows.
FWP_DEVICE void start_copy(void* to, const void* from) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}
// The same for the first `bytes` of the 16 bytes; the others become 0.
FWP_DEVICE void start_copy(void* to, const void* from, int bytes) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
}
// The same for 4 bytes.
FWP_DEVICE void start_copy_of_word(void* to, const void* from) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(from) : "memory");
}
FWP_DEVICE void copies_arrived() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// c += A B, of halves
FWP_DEVICE void mma_half(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const float d[4] = {c[0], c[1], c[2], c[3]};
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%11,%12,%13};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3]));
}
// ldmatrix.x4: lane 8 i + r gives the address of row r (8 halves, 16-byte aligned) of matrix i. Afterwards x[i] holds
// (g, 2t..) of matrix i; transposed: (2t.., g).
FWP_DEVICE void load_matrices(uint32_t (&x)[4], const void* row) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address)
               : "memory");
}
FWP_DEVICE void load_matrices_transposed(uint32_t (&x)[4], const void* row) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(address)
               : "memory");
}

// Returns CUDA's message if there was an error, else null; also clears CUDA's last error, so that no later call reports
// it.
inline const char* error_text(cudaError_t error) {
  if (error == cudaSuccess) return nullptr;
  cudaGetLastError();
  return cudaGetErrorString(error);
}
// Returns the reason why the device cannot run the kernel, for example because the library has no code for it; or null.
template <class Argument> const char* missing_code(void (*kernel)(Argument)) {
  cudaFuncAttributes attributes;
  return error_text(cudaFuncGetAttributes(&attributes, kernel));
}
// Starts kernel<<<blocks, threads, shared, stream>>>(argument); returns CUDA's message if there was an error, else
// null. If a kernel needs more shared memory than every device gives by default, its limit is raised to all that the
// device has, so that host threads that launch at the same time set the same value.
template <class Argument>
const char* launch(void (*kernel)(Argument), int blocks, int threads, int shared, Stream stream,
                   const Argument& argument) {
  cudaError_t error = cudaSuccess;
  if (shared > 48 * 1024) {
    int device = 0, limit = 0;
    error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error == cudaSuccess) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, limit);
  }
  if (error == cudaSuccess) {
    kernel<<<blocks, threads, shared, stream>>>(argument);
    error = cudaGetLastError();
  }
  return error_text(error);
}

}  // namespace fwp::gpu

#else
#include "shim/device.h"  // of tests/cuda
#endif
