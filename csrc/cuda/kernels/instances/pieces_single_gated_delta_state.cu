#include "../forward_pieces.cuh"
FWP_INSTANCE_OF_PIECES(Single, gated_delta, state)
