#include "../rows.cuh"

namespace fwp::gpu {

int bytes_of_rows(const Call& c) { return rows_bytes(c, c.grad_out.data); }

const char* run_rows(Stage step, const Call& c, void* stream) {
  const bool back = step == Stage::rows_back;
  const int warps = threads / 32, blocks = (c.group * rows_of_head(c) + warps - 1) / warps;
  return launch(back ? rows_back_kernel : rows_kernel, blocks, threads, rows_bytes(c, back),
                static_cast<Stream>(stream), c);
}

}  // namespace fwp::gpu
