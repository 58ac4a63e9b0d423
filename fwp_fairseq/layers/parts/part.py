"""The base class of modules that an option adds to attention."""

from typing import ClassVar

from torch import nn


class Part(nn.Module):
    """Changes the queries and keys of all heads, or their outputs, where an option is not its default.

    ``forward`` maps (..., heads, d_key) to the same shape. In the attention, the module is named as the option.

    Attributes:
        option: the name of the option.
        place: what the module changes, ``"queries and keys"`` or ``"output"``.

    Args:
        heads, d_key: number of heads, and width of each.
        variance: mean square of an entry of fresh queries and keys.
    """

    option: ClassVar[str]
    place: ClassVar[str]

    def __init__(self, heads: int, d_key: int, variance: float):
        super().__init__()
