#include "../rows.cuh"

namespace fwp::gpu {

int bytes_of_rows(const Call& c) { return rows_bytes(c, false); }

const char* run_rows(Stage step, const Call& c, void* stream) {
  const bool back = step == Stage::rows_back;
  return launch(back ? rows_back_kernel : rows_kernel, c.group * row_blocks_of_head(c), most_threads,
                rows_bytes(c, back), static_cast<Stream>(stream), c);
}

}  // namespace fwp::gpu
