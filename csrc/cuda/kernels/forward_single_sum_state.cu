#include "forward.cuh"

namespace fwp::gpu {
template const char* launch_forward<Single, false, Kind::state>(const Call&, void*);
}
