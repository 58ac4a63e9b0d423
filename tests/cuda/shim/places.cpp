#include "places.h"

#include <algorithm>
#include <set>
#include <string>

namespace fwp::gpu::shim {
namespace {

std::set<std::string> met;
std::set<std::string> left_out;

}  // namespace

std::string name_of(Site site) {
  const std::string path = site.file;
  return path.substr(path.rfind('/') + 1) + ":" + std::to_string(site.line);
}

void note_place(const char* barrier, const Site* sites, int count) {
  std::set<std::string> names;
  for (int i = 0; i < count; ++i)
    if (!i || sites[i].line != sites[i - 1].line || sites[i].file != sites[i - 1].file) names.insert(name_of(sites[i]));
  std::string line = barrier;
  for (const std::string& name : names) line += " " + name;
  met.insert(line);
}

bool is_left_out(Site site) { return !left_out.empty() && left_out.count(name_of(site)); }

}  // namespace fwp::gpu::shim

using namespace fwp::gpu::shim;

extern "C" const char* fwp_shim_places() {
  static std::string text;
  text.clear();
  for (const std::string& line : met) text += line + "\n";
  met.clear();
  return text.c_str();
}

extern "C" void fwp_shim_leave_out(const char* places) {
  left_out.clear();
  const std::string names = places;
  for (std::size_t at = 0; at < names.size();) {
    const std::size_t end = std::min(names.find(' ', at), names.size());
    left_out.insert(names.substr(at, end - at));
    at = end + 1;
  }
}
