#include "races.h"

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace fwp::gpu::shim::races {

bool watched = false;

namespace {

constexpr int warp_size = 32, most_warps = 32, cell_bytes = 2;

using Clock = uint32_t;
Clock known[most_warps][most_warps];  // [v][w]: what of w was before this is over for v; [w][w] is w's own time

struct Write {
  Clock at = 0;
  int thread = 0, block = 0;
};
struct Reads {
  Clock at = 0;
  uint32_t lanes = 0;  // that read at this time
};
// What is known of cell_bytes bytes. What was noted for another `owner` counts no more.
struct Cell {
  uint64_t owner = 0;
  Write write;
  int reader = -1;             // the last block that read it,
  bool other_readers = false;  // and whether others did before
};

// Cells and the reads of each of their warps.
struct Shadow {
  std::vector<Cell> cells;
  std::vector<Reads> reads;
  void fit(std::size_t count) {
    if (cells.size() < count) cells.resize(count), reads.resize(count * most_warps);
  }
};

int warps = 0, block = 0;
uint64_t launches = 0, blocks = 0;
const char* shared_begin = nullptr;
const char* shared_end = nullptr;
Shadow shared;
constexpr std::size_t page_bytes = 2048, most_pages = 400;
std::unordered_map<std::uintptr_t, Shadow> pages;  // of global memory

std::uintptr_t last_number = 0;  // of the page that was asked for last; most accesses are to the same one
Shadow* last_page = nullptr;

Shadow& page_of(std::uintptr_t address) {
  const std::uintptr_t number = address / page_bytes;
  if (!last_page || number != last_number) {
    last_number = number;
    last_page = &pages[number];
    last_page->fit(page_bytes / cell_bytes);
  }
  return *last_page;
}

struct Access {
  int thread;
  bool whole_warp, write, is_shared;
  std::uintptr_t address;
  std::string& race;

  // Says that the access is a race, with what `other` and, if not negative, its thread do.
  bool against(const char* other, int other_thread) const {
    const std::uintptr_t from = is_shared ? reinterpret_cast<std::uintptr_t>(shared_begin) : 0;
    race = "race: thread " + std::to_string(thread) + (write ? " writes" : " reads") + " byte " +
           std::to_string(address - from) + " of " + (is_shared ? "shared" : "global") + " memory, which " + other +
           (other_thread < 0 ? "" : std::to_string(other_thread)) + " without a barrier between them";
    return true;
  }
  bool touches(Cell& cell, Reads* reads) const {
    const auto forget_reads = [&] {
      for (int v = 0; v < warps; ++v) reads[v] = Reads{};
    };
    const uint64_t owner = is_shared ? blocks : launches;
    if (cell.owner != owner) {
      cell = Cell{};
      cell.owner = owner;
      forget_reads();
    }
    const int w = thread / warp_size;
    if (cell.write.at) {
      if (cell.write.block != block) return against("another block wrote", -1);
      const bool own = cell.write.thread == thread && !whole_warp;
      if (!own && cell.write.at >= known[w][cell.write.thread / warp_size])
        return against("was written by thread ", cell.write.thread);
    }
    if (cell.reader >= 0 && cell.reader != block) {
      cell.other_readers = true;
      forget_reads();
    }
    const Clock now = known[w][w];
    const uint32_t lane = 1u << thread % warp_size;
    if (!write) {
      cell.reader = block;
      if (reads[w].at != now) reads[w] = {now, 0};
      reads[w].lanes |= whole_warp ? ~0u : lane;
      return false;
    }
    if (cell.other_readers) return against("another block read", -1);
    for (int v = 0; v < warps; ++v) {
      const uint32_t others = reads[v].at < known[w][v] ? 0 : v == w ? reads[v].lanes & ~lane : reads[v].lanes;
      if (others) return against("was read by thread ", v * warp_size + __builtin_ctz(others));
    }
    cell.write = {now, thread, block};
    return false;
  }
};

}  // namespace

void begin_launch(int count, const char* from, int bytes) {
  warps = count;
  shared_begin = from;
  shared_end = from + bytes;
  ++launches;
  shared.fit(bytes / cell_bytes + 1);
  if (pages.size() > most_pages) pages.clear(), last_page = nullptr;
}

void begin_block(int number) {
  block = number;
  ++blocks;
  for (auto& row : known)
    for (Clock& clock : row) clock = 1;
}

void order_warp(int warp) { ++known[warp][warp]; }

void order_warps(unsigned met) {
  Clock latest[most_warps] = {};
  for (int v = 0; v < warps; ++v)
    if (met >> v & 1) {
      ++known[v][v];
      for (int w = 0; w < warps; ++w) latest[w] = known[v][w] > latest[w] ? known[v][w] : latest[w];
    }
  for (int v = 0; v < warps; ++v)
    if (met >> v & 1)
      for (int w = 0; w < warps; ++w) known[v][w] = latest[w];
}

bool access(int thread, bool whole_warp, const void* address, int bytes, bool write, std::string& race) {
  const bool is_shared = address >= shared_begin && address < shared_end;
  const auto from = reinterpret_cast<std::uintptr_t>(address), end = from + bytes;
  for (std::uintptr_t at = from / cell_bytes * cell_bytes; at < end; at += cell_bytes) {
    const std::size_t offset = is_shared ? at - reinterpret_cast<std::uintptr_t>(shared_begin) : at % page_bytes;
    Shadow& shadow = is_shared ? shared : page_of(at);
    const std::size_t cell = offset / cell_bytes;
    const Access one{thread, whole_warp, write, is_shared, at, race};
    if (one.touches(shadow.cells[cell], &shadow.reads[cell * most_warps])) return true;
  }
  return false;
}

}  // namespace fwp::gpu::shim::races

extern "C" void fwp_shim_watch(int watched) { fwp::gpu::shim::races::watched = watched; }
