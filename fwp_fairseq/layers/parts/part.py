"""The base class of modules that an option adds to attention."""

from typing import ClassVar

from torch import nn


class Part(nn.Module):
    """Changes the queries and keys of all heads, or their outputs.

    Attention has this part if its option does not have the default.

    ``forward`` maps (..., heads, d_key) to the same shape. Attention stores the module under the name of the option.

    Attributes:
        option: the name of the option.
        place: ``"queries and keys"`` or ``"output"``, whichever the module changes.

    Args:
        heads, d_key: number of heads, and width of each.
        variance: mean square of an entry of queries and keys at initialisation.
    """

    option: ClassVar[str]
    place: ClassVar[str]

    def __init__(self, heads: int, d_key: int, variance: float):
        super().__init__()
