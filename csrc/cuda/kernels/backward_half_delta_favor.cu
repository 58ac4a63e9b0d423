#include "backward.cuh"

namespace fwp::gpu {
template const char* launch_backward<Half, true, Kind::favor>(const Call&, void*);
}
