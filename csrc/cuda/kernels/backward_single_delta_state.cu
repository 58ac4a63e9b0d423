#include "backward.cuh"

namespace fwp::gpu {
template const char* launch_backward<Single, true, Kind::state>(const Call&, void*);
}
