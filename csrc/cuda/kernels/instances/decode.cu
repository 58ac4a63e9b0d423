#include "../decode.cuh"

namespace fwp::gpu {

int decode_bytes(const DecodeCall& c) { return DecodeShared().lay(nullptr, c); }

const char* start_decode(const DecodeCall& c, void* stream) {
  const int blocks = c.rows * c.heads * (c.k.data ? 1 : c.tokens);
  return launch(decode_kernel, blocks, decode_threads, decode_bytes(c), static_cast<Stream>(stream), c);
}
const char* start_fold(const DecodeCall& c, void* stream) {
  const int blocks = c.rows * c.heads * ((c.d_dot + fold_features - 1) / fold_features);
  return launch(fold_kernel, blocks, decode_threads, fold_bytes(c), static_cast<Stream>(stream), c);
}

}  // namespace fwp::gpu
