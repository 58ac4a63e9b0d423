#include "backward.cuh"

namespace fwp::gpu {
template const char* launch_backward<Single, false, Kind::state>(const Call&, void*);
}
