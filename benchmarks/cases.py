"""The cases of benchmarks.attention."""

from dataclasses import dataclass, replace
from itertools import product

HEADS, WIDTH = 8, 64  # of a head: d_key = d_value
RULES = ("sum", "delta")
# The number of decoding steps whose mean is taken, so that growing the cache and folding blocks are included.
STEPS = 32

# B*H, length and d_dot of forward and backward; history and d_dot of decoding with B*H = 640.
_CPU = ((256, 32, 64), (256, 32, 256), (256, 32, 512), (64, 128, 256), (64, 128, 512), (16, 1024, 256), (8, 4096, 256))
_CPU_DECODE = ((32, 64), (32, 256), (32, 512), (128, 256), (1024, 256))
_GPU = (
    *((64, 32, 256), (256, 32, 64), (1024, 32, 64), (1024, 32, 256), (1024, 32, 384), (1024, 32, 512)),
    *((4096, 32, 256), (1024, 64, 256), (1024, 64, 512), (1024, 128, 64), (1024, 128, 256), (1024, 128, 512)),
    *((64, 1024, 256), (64, 4096, 256), (64, 4096, 512)),
)
_GPU_FLOAT16 = ((1024, 32, 256), (1024, 128, 512))
_GPU_DECODE = ((32, 64), (32, 256), (128, 256), (32, 512), (128, 512), (1024, 256))


@dataclass(frozen=True)
class Case:
    """A case to time.

    Attributes:
        part: forward, both (forward + backward), decode (``length`` is the history) or reorder.
    """

    part: str
    dtype: str
    rule: str
    rows: int
    length: int
    d_dot: int

    @property
    def name(self) -> str:
        return f"{self.part}-{self.dtype}-{self.rule}-{self.rows}x{self.length}-{self.d_dot}"

    @property
    def feature_map(self) -> str:
        return "elu" if self.d_dot == WIDTH else "dpfp"

    def small(self) -> "Case":
        """Returns the case with one batch row, for the check, of more than two chunks if the case has more than one."""
        return replace(self, rows=HEADS, length=min(self.length, 320))


def _whole(dtype: str, shapes) -> list[Case]:
    return [Case(part, dtype, rule, *shape) for part, shape, rule in product(("forward", "both"), shapes, RULES)]


def _steps(part: str, dtype: str, rules, shapes) -> list[Case]:
    return [Case(part, dtype, rule, 640, *shape) for shape, rule in product(shapes, rules)]


# In this order, because those at the end are left out when the time is up.
CASES = {
    "cpu": [
        *_whole("float32", _CPU),
        *_steps("decode", "float32", ("delta",), _CPU_DECODE),
        *_steps("reorder", "float32", ("delta",), _CPU_DECODE),
    ],
    "cuda": [
        *_whole("bfloat16", _GPU),
        *_steps("decode", "bfloat16", RULES, _GPU_DECODE),
        *_whole("float16", _GPU_FLOAT16),
        *_steps("reorder", "bfloat16", RULES, _GPU_DECODE),
    ],
}
