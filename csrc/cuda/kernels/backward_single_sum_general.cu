#include "backward.cuh"

namespace fwp::gpu {
template const char* launch_backward<Single, false, Kind::general>(const Call&, void*);
}
