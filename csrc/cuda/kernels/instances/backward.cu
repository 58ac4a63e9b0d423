#include "../backward.cuh"

namespace fwp::gpu {

FWP_KERNEL(most_threads, 3) walk_back_kernel(FWP_CONSTANT Call c) {
  Backward(c, block_index() / c.slices).walk_back(c.slice + block_index() % c.slices);
}
FWP_KERNEL(most_threads, 2) chunks_back_kernel(FWP_CONSTANT Call c) {
  Backward(c, block_index() / chunks_of(c)).chunks_back(block_index() % chunks_of(c), c.slice, c.slice + c.slices);
}

const char* run_backward(Stage step, const Call& c, void* stream) {
  const auto start = [&](void (*kernel)(Call), int blocks) {
    return launch(kernel, c.group * blocks, 2 * block_rows(c), bytes_of_block(c), static_cast<Stream>(stream), c);
  };
  switch (step) {
    case Stage::walk_back:
      return start(walk_back_kernel, c.slices);
    default:
      return start(chunks_back_kernel, chunks_of(c));
  }
}

}  // namespace fwp::gpu
