#include "../forward_pieces.cuh"
FWP_INSTANCE_OF_PIECES(Half, delta, state)
