// The list of kernels that run as nvcc has made them, see ptx.h.
#include <dlfcn.h>

#include <map>
#include <set>
#include <string>

#include "ptx.h"

namespace fwp::gpu::shim {
namespace {

std::map<std::string, Translated>& kernels() {
  static std::map<std::string, Translated> all;
  return all;
}
std::set<std::string> launched;

// Of warps that have ended, and of the lane that has executed most in each warp of the block that runs.
uint64_t executed = 0, of_warp[32] = {};
int running = -1;

}  // namespace

Translation::Translation(const char* name, Translated kernel) { kernels()[name] = kernel; }

Executed::~Executed() {
  if (running != block()) {
    running = block();
    for (uint64_t& count : of_warp) count = 0;
  }
  uint64_t& most = of_warp[thread() / 32];
  if (count > most) executed += count - most, most = count;
}

Translated translation_of(const void* kernel) {
  if (kernels().empty()) return nullptr;
  Dl_info symbol;
  if (!dladdr(kernel, &symbol) || !symbol.dli_sname) return nullptr;
  const auto found = kernels().find(symbol.dli_sname);
  if (found == kernels().end()) return nullptr;
  launched.insert(found->first);
  running = -1;
  return found->second;
}

}  // namespace fwp::gpu::shim

// Instructions that warps have executed since the last call.
extern "C" uint64_t fwp_shim_executed() {
  const uint64_t found = fwp::gpu::shim::executed;
  fwp::gpu::shim::executed = 0, fwp::gpu::shim::running = -1;
  return found;
}

// The names of all translated kernels, or of those that have been started, in lines.
extern "C" const char* fwp_shim_translated(int started) {
  static std::string text;
  text.clear();
  for (const auto& [name, kernel] : fwp::gpu::shim::kernels())
    if (!started || fwp::gpu::shim::launched.count(name)) text += name + "\n";
  return text.c_str();
}
