// The tensor cores' products of device.h, of operands that already have their type's number of bits.
#pragma once

namespace fwp::gpu::shim {

constexpr int product_rows = 16, product_columns = 8, most_products = 16;
// C += A B over `inner` columns of A, rounded towards zero as measured on GPUs (Fasi, Higham, Mikaitis and Pranesh,
// Numerical behavior of NVIDIA tensor cores, PeerJ Computer Science 7, 2021): every summand is cut to two bits more than
// the largest one has as a float, and so is their sum to a float.
void multiply(const float (&A)[product_rows][most_products], const float (&B)[most_products][product_columns],
              int inner, float (&C)[product_rows][product_columns]);

}  // namespace fwp::gpu::shim
