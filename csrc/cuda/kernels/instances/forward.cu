#include "../forward.cuh"

namespace fwp::gpu {

// A block for each head, slice of columns and tile of features, or for each head and chunk.
FWP_KERNEL(most_threads, 4) walk_kernel(FWP_CONSTANT Call c) {
  const int walks = walks_of(c), tile = block_index() % walks, rest = block_index() / walks;
  const Range tiles = walks > 1 ? Range{tile, tile + 1} : Range{0, feature_tiles_of(c)};
  Forward(c, rest / c.slices).walk(c.slice + rest % c.slices, tiles);
}
FWP_KERNEL(most_threads, 4) keys_kernel(FWP_CONSTANT Call c) {
  Forward(c, block_index() / chunks_of(c)).keys_of(block_index() % chunks_of(c));
}
FWP_KERNEL(most_threads, 2) outputs_kernel(FWP_CONSTANT Call c) {
  const int blocks = outputs_of(c);
  FWP_ROLLED (int i = block_index() % blocks; i < query_chunks_of(c); i += blocks)
    Forward(c, block_index() / blocks).outputs(i, c.backward);
}

int bytes_of_block(const Call& c) { return Shared().lay(nullptr, c); }

const char* run_forward(Stage step, const Call& c, void* stream) {
  const auto start = [&](void (*kernel)(Call), int blocks) -> const char* {
    if (blocks == 0) return nullptr;
    return launch(kernel, c.group * blocks, 2 * block_rows(c), bytes_of_block(c), static_cast<Stream>(stream), c);
  };
  switch (step) {
    case Stage::walk:
      return start(walk_kernel, c.slices * walks_of(c));
    case Stage::keys:
      return start(keys_kernel, chunks_of(c));
    default:
      return start(outputs_kernel, outputs_of(c));
  }
}

const char* missing_code() { return gpu::missing_code(outputs_kernel); }

}  // namespace fwp::gpu
