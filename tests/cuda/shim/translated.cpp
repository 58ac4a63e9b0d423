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

}  // namespace

Translation::Translation(const char* name, Translated kernel) { kernels()[name] = kernel; }

Translated translation_of(const void* kernel) {
  if (kernels().empty()) return nullptr;
  Dl_info symbol;
  if (!dladdr(kernel, &symbol) || !symbol.dli_sname) return nullptr;
  const auto found = kernels().find(symbol.dli_sname);
  if (found == kernels().end()) return nullptr;
  launched.insert(found->first);
  return found->second;
}

}  // namespace fwp::gpu::shim

// The names of all translated kernels, or of those that have been started, in lines.
extern "C" const char* fwp_shim_translated(int started) {
  static std::string text;
  text.clear();
  for (const auto& [name, kernel] : fwp::gpu::shim::kernels())
    if (!started || fwp::gpu::shim::launched.count(name)) text += name + "\n";
  return text.c_str();
}
