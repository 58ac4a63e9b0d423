// Warps, barriers and the warp-wide primitives of device.h.
#include "device.h"
#include "fibre.h"
#include "places.h"
#include "products.h"
#include "races.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace fwp::gpu::shim {
namespace {

constexpr int warp_size = 32, most_threads = 1024;
constexpr std::size_t margin = 64 * 1024;
constexpr unsigned char poison = 0xff;  // NaN as half, bfloat16 and float
constexpr unsigned char untouched = 0xa5;

enum class State { ready, in_warp, at_barrier, ended };

struct Thread {
  Fibre fibre;
  State state;
  Site site;  // of its last barrier
  Lane lane;
  struct Copy {
    char* to;
    const void* from;
    int bytes;
  };
  std::vector<Copy> copies;  // under way
};

// A primitive in which the lanes of a warp are about to meet.
struct Meeting {
  Op op;
  Site site;
  int arrived;
};

struct Machine {
  Thread threads[most_threads];
  Meeting meetings[most_threads / warp_size];
  std::unique_ptr<char[]> stacks{new char[most_threads * stack_bytes]};
  Fibre scheduler;
  std::vector<char> memory;
  char* shared = nullptr;
  int thread_count = 0, shared_bytes = 0, current = 0, block = 0;
  bool running = false;
  Body body = nullptr;
  const void *kernel = nullptr, *argument = nullptr;
  std::string error;
};
Machine& machine() {
  static Machine* const one = new Machine;
  return *one;
}

void to_scheduler() {
  Machine& m = machine();
  Fibre::change(m.threads[m.current].fibre, m.scheduler);
}

void entry() {
  Machine& m = machine();
  m.body(m.kernel, m.argument);
  if (!m.threads[m.current].copies.empty()) fail("a thread ends before its copies have arrived");
  m.threads[m.current].state = State::ended;
  to_scheduler();
  std::abort();
}

void mma(Thread* warp) {
  float A[product_rows][most_products], B[most_products][product_columns], C[product_rows][product_columns];
  for (int l = 0; l < warp_size; ++l) {
    const int g = l / 4, t = l % 4;
    const Lane& lane = warp[l].lane;
    for (int half = 0; half < 2; ++half) {
      const auto number = [&](int i) { return from_half(uint16_t(lane.in[i] >> 16 * half)); };
      for (int i = 0; i < 4; ++i) A[g + 8 * (i & 1)][2 * t + half + 8 * (i >> 1)] = number(i);
      for (int i = 0; i < 2; ++i) B[2 * t + half + 8 * i][g] = number(4 + i);
    }
    for (int i = 0; i < 4; ++i) C[g + 8 * (i >> 1)][2 * t + (i & 1)] = lane.in_f[6 + i];
  }
  multiply(A, B, 16, C);
  for (int l = 0; l < warp_size; ++l)
    for (int i = 0; i < 4; ++i) warp[l].lane.out_f[i] = C[l / 4 + 8 * (i >> 1)][l % 4 * 2 + (i & 1)];
}

void check_for_races(int thread, bool whole_warp, const void* address, int bytes, bool write) {
  static std::string* const race = new std::string;
  if (races::watched && races::access(thread, whole_warp, address, bytes, write, *race)) fail(race->c_str());
}

void load(Thread* warp, bool transposed) {
  const Machine& m = machine();
  for (int i = 0; i < 4; ++i) {
    uint16_t rows[8][8];
    for (int r = 0; r < 8; ++r) {
      const char* from = static_cast<const char*>(warp[8 * i + r].lane.address);
      if (from < m.shared || from + 16 > m.shared + m.shared_bytes) fail("a matrix row lies outside of shared memory");
      if ((from - m.shared) % 16) fail("a matrix row is not 16-byte aligned");
      check_for_races(int(warp - m.threads) + 8 * i + r, true, from, 16, false);
      std::memcpy(rows[r], from, 16);
    }
    for (int l = 0; l < warp_size; ++l) {
      const int g = l / 4, t = l % 4;
      warp[l].lane.out[i] = transposed ? rows[2 * t][g] | uint32_t(rows[2 * t + 1][g]) << 16
                                       : rows[g][2 * t] | uint32_t(rows[g][2 * t + 1]) << 16;
    }
  }
}

// Notes the barrier at which the threads that `takes_part` names have met.
template <class F> void note_places(const char* barrier, F takes_part) {
  Machine& m = machine();
  Site sites[most_threads];
  int count = 0;
  for (int i = 0; i < m.thread_count; ++i)
    if (takes_part(i)) sites[count++] = m.threads[i].site;
  note_place(barrier, sites, count);
}

void exchange(Op op, Thread* warp) {
  Machine& m = machine();
  switch (op) {
    case Op::shuffle:
    case Op::shuffle_xor:
      for (int l = 0; l < warp_size; ++l) {
        const int source = op == Op::shuffle ? warp[l].lane.source : l ^ warp[l].lane.source;
        if (source < 0 || source >= warp_size) fail("a shuffle reads a lane that does not exist");
        warp[l].lane.out[0] = warp[source].lane.in[0];
      }
      break;
    case Op::mma_half:
      mma(warp);
      break;
    case Op::load_matrices:
    case Op::load_matrices_transposed:
      load(warp, op == Op::load_matrices_transposed);
      break;
    case Op::sync_warp:
      if (races::watched) {
        note_places("warp", [&](int i) { return m.threads + i >= warp && m.threads + i < warp + warp_size; });
        races::order_warp(int(warp - m.threads) / warp_size);
      }
      break;
    default:
      break;
  }
}

// Runs a warp until all its threads wait at the block's barrier or have ended.
void run_warp(int first) {
  Machine& m = machine();
  for (;;) {
    bool ran = false;
    for (int index = first; index < first + warp_size; ++index) {
      if (m.threads[index].state != State::ready) continue;
      ran = true;
      m.current = index;
      Fibre::change(m.scheduler, m.threads[index].fibre);
      if (!m.error.empty()) return;
    }
    if (ran) continue;
    for (int i = 0; i < warp_size; ++i)
      if (m.threads[first + i].state == State::in_warp) {
        m.error = "the lanes of a warp do not meet: some wait at " + name_of(m.meetings[first / warp_size].site) +
                  ", others at the block's barrier or at the kernel's end";
        return;
      }
    return;
  }
}

// Releases the threads at the block's barrier if all wait there; returns whether they did.
bool release_barrier() {
  Machine& m = machine();
  const auto waits = [&](int i) { return m.threads[i].state == State::at_barrier; };
  for (int i = 0; i < m.thread_count; ++i)
    if (!waits(i)) return false;
  if (races::watched) note_places("block", waits);
  for (int i = 0; i < m.thread_count; ++i) m.threads[i].state = State::ready;
  races::order_warps(unsigned((1ull << m.thread_count / warp_size) - 1));
  return true;
}

const char* first_touched(const char* from, const char* end) {
  // All bytes are the same if each is the one before it. One by one takes a twentieth of a kernel's time.
  if (static_cast<unsigned char>(*from) == untouched && !std::memcmp(from, from + 1, end - from - 1)) return end;
  return std::find_if(from, end, [](char byte) { return static_cast<unsigned char>(byte) != untouched; });
}

void run_block() {
  Machine& m = machine();
  std::memset(m.memory.data(), untouched, m.memory.size());
  std::memset(m.shared, poison, m.shared_bytes);
  for (int i = 0; i < m.thread_count; ++i) {
    m.threads[i].state = State::ready;
    m.threads[i].copies.clear();
    m.threads[i].fibre.start(m.stacks.get() + i * stack_bytes, entry);
  }
  for (Meeting& meeting : m.meetings) meeting.arrived = 0;
  races::begin_block(m.block);
  const int warps = m.thread_count / warp_size;
  for (;;) {
    for (int w = 0; w < warps; ++w) {
      run_warp(w * warp_size);
      if (!m.error.empty()) return;
    }
    int ended = 0;
    for (int i = 0; i < m.thread_count; ++i) ended += m.threads[i].state == State::ended;
    if (ended == m.thread_count) break;
    if (!release_barrier()) {
      m.error = "the threads that wait do not meet: some have ended";
      return;
    }
  }
  const char *const begin = m.memory.data(), *const shared_end = m.shared + m.shared_bytes;
  for (const auto& [from, end] :
       {std::pair<const char*, const char*>{begin, m.shared}, {shared_end, begin + m.memory.size()}})
    if (const char* at = first_touched(from, end); at != end) {
      m.error = "the kernel wrote " + std::to_string(at - m.shared) + " bytes from the start of its " +
                std::to_string(m.shared_bytes) + " bytes of shared memory";
      return;
    }
}

}  // namespace

const char* missing_code = nullptr;

void fail(const char* message) {
  machine().error = message;
  to_scheduler();
  std::abort();
}

Lane& lane() {
  Machine& m = machine();
  return m.threads[m.current].lane;
}
int thread() { return machine().current; }
int block() { return machine().block; }

int shared_bytes() { return machine().shared_bytes; }

char* shared(int bytes) {
  Machine& m = machine();
  if (bytes > m.shared_bytes) fail("the kernel uses more shared memory than its launch asked for");
  return m.shared;
}

void meet(Op op, Site site) {
  Machine& m = machine();
  Meeting& meeting = m.meetings[m.current / warp_size];
  if (meeting.arrived && meeting.op != op) fail("the lanes of a warp meet in different primitives");
  if (meeting.arrived && (meeting.site.line != site.line || std::strcmp(meeting.site.file, site.file)))
    fail("the lanes of a warp meet at different places");
  meeting.op = op;
  meeting.site = site;
  if (++meeting.arrived < warp_size) {
    m.threads[m.current].state = State::in_warp;
    to_scheduler();
    return;
  }
  meeting.arrived = 0;
  const int first = m.current / warp_size * warp_size;
  exchange(op, m.threads + first);
  for (int i = 0; i < warp_size; ++i) m.threads[first + i].state = State::ready;
}

void meet_warp(Site site) {
  if (is_left_out(site)) return;
  machine().threads[machine().current].site = site;
  meet(Op::sync_warp, site);
}

void meet_block(Site site) {
  if (is_left_out(site)) return;
  Thread& own = machine().threads[machine().current];
  own.site = site;
  own.state = State::at_barrier;
  to_scheduler();
}

void note_access(const void* address, int bytes, bool write) {
  if (!machine().running) return;
  const Machine& m = machine();
  const char* at = static_cast<const char*>(address);
  const bool stack = at >= m.stacks.get() && at < m.stacks.get() + most_threads * stack_bytes;
  const bool own = at >= reinterpret_cast<const char*>(&m) && at < reinterpret_cast<const char*>(&m + 1);
  const char* halves = reinterpret_cast<const char*>(half_values);
  const bool half = at >= halves && at < halves + 65536 * sizeof *half_values;
  if (stack || own || half) return;
  check_for_races(m.current, false, address, bytes, write);
}

void start_copy(void* to, const void* from, int bytes) {
  Machine& m = machine();
  char* at = static_cast<char*>(to);
  if (at < m.shared || at + bytes > m.shared + m.shared_bytes) fail("a copy goes to outside of shared memory");
  if (reinterpret_cast<std::uintptr_t>(to) % bytes || reinterpret_cast<std::uintptr_t>(from) % bytes)
    fail("a copy is not aligned to its bytes");
  if (races::watched) note_access(from, bytes, false), note_access(to, bytes, true);
  std::memset(to, poison, bytes);
  m.threads[m.current].copies.push_back({at, from, bytes});
}
void finish_copies() {
  std::vector<Thread::Copy>& copies = machine().threads[machine().current].copies;
  for (const Thread::Copy& copy : copies) {
    if (races::watched) note_access(copy.to, copy.bytes, true);
    std::memcpy(copy.to, copy.from, copy.bytes);
  }
  copies.clear();
}

const char* run(Body body, const void* kernel, const void* argument, int blocks, int threads, int shared_bytes) {
  Machine& m = machine();
  m.error.clear();
  if (threads < warp_size || threads > most_threads || threads % warp_size) m.error = "impossible number of threads";
  m.body = body;
  m.kernel = kernel;
  m.argument = argument;
  m.thread_count = threads;
  m.shared_bytes = shared_bytes;
  m.memory.resize(shared_bytes + 2 * margin + 16);
  const auto start = reinterpret_cast<std::uintptr_t>(m.memory.data()) + margin;
  m.shared = reinterpret_cast<char*>((start + 15) / 16 * 16);
  races::begin_launch(threads / warp_size, m.shared, shared_bytes);
  for (m.block = 0; m.block < blocks && m.error.empty(); ++m.block) {
    m.running = true;
    run_block();
    m.running = false;
  }
  return m.error.empty() ? nullptr : m.error.c_str();
}

}  // namespace fwp::gpu::shim
