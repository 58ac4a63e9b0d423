#include "forward.cuh"

namespace fwp::gpu {
template const char* launch_forward<Half, false, Kind::general>(const Call&, void*);
}
