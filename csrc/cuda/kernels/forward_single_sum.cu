#include "forward.cuh"

namespace fwp::gpu {
template int bytes_of<Single>(const Call&, bool);
template const char* launch_forward<Single, false, Kind::plain>(const Call&, void*);
}
