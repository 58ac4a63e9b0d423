#include "forward.cuh"

namespace fwp::gpu {
template const char* launch_forward<Single, true, Kind::plain>(const Call&, void*);
}
