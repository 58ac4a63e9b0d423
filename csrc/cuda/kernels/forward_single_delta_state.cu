#include "forward.cuh"

namespace fwp::gpu {
template const char* launch_forward<Single, true, Kind::state>(const Call&, void*);
}
