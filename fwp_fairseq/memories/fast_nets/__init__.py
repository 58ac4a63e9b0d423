"""Fast nets in place of the one fast weight matrix: one file each, and the list of them."""

from .delta_delta import DeltaDelta
from .fast_net import FastNet
from .fwp1991 import Fwp1991
from .linear import Linear
from .lstm import Lstm
from .mlp import Mlp
from .rnn import Rnn

FAST_NETS: dict[str, type[FastNet]] = {net.name: net for net in (Linear, Rnn, Lstm, Mlp, DeltaDelta, Fwp1991)}

__all__ = ["FAST_NETS", "FastNet"]
