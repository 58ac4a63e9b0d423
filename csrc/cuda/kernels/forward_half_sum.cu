#include "forward.cuh"

namespace fwp::gpu {
template int bytes_of<Half>(const Call&, bool);
template const char* launch_forward<Half, false, Kind::plain>(const Call&, void*);
}
