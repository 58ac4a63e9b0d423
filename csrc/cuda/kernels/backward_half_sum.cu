#include "backward.cuh"

namespace fwp::gpu {
template const char* launch_backward<Half, false, Kind::plain>(const Call&, void*);
}
