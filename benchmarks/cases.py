"""The cases of benchmarks.attention and their targets: ratios to another implementation's time, or seconds."""

from dataclasses import dataclass, field, replace
from itertools import product

HEADS, WIDTH = 8, 64  # of a head: d_key = d_value
RULES = ("sum", "delta")
# The number of decoding steps whose mean is taken, so that growing the cache and folding blocks are included.
STEPS = 32

# Forward, float32: B*H, length, d_dot, and the largest permitted ratio to softmax (sum, delta).
_CPU_FLOAT32 = (
    (256, 32, 64, 0.8, 1.1),
    (256, 32, 256, 1.5, 2.1),
    (256, 32, 512, 2.5, 3.6),
    (64, 128, 256, 1.3, 2.1),
    (64, 128, 512, 2.1, 3.6),
    (16, 1024, 256, 0.5, 0.85),
    (8, 4096, 256, 0.2, 0.3),
)
# The permitted ratio of forward + backward is larger than that of the forward by this.
_BACKWARD = 1.3
# Against other implementations, up to 128 tokens.
_CPU_PEERS = {"torch": 1 / 5}
# Decoding with B*H = 640: history, d_dot, largest permitted ratio to softmax.
_CPU_DECODE = ((32, 64, 0.9), (32, 256, 1.5), (32, 512, 2.2), (128, 256, 1.4), (1024, 256, 0.1))
_REORDER = 0.05  # of a step

_GPU = (
    *((64, 32, 256), (256, 32, 64), (1024, 32, 64), (1024, 32, 256), (1024, 32, 384), (1024, 32, 512)),
    *((4096, 32, 256), (1024, 64, 256), (1024, 64, 512), (1024, 128, 64), (1024, 128, 256), (1024, 128, 512)),
    *((64, 1024, 256), (64, 4096, 256), (64, 4096, 512)),
)
_GPU_FLOAT16 = ((1024, 32, 256), (1024, 128, 512))
_GPU_DECODE = ((32, 64), (32, 256), (128, 256), (32, 512), (128, 512), (1024, 256))
_H200_BANDWIDTH = 4.3e12  # bytes/s


@dataclass(frozen=True)
class Case:
    """A case to time.

    Attributes:
        part: forward, both (forward + backward), decode (``length`` is the history) or reorder.
        limits: the largest permitted ratio to other implementations, by name; ``step`` stands for a decoding step, and
            ``seconds`` for an absolute time.
    """

    part: str
    dtype: str
    rule: str
    rows: int
    length: int
    d_dot: int
    limits: dict[str, float] = field(default_factory=dict, compare=False)

    @property
    def name(self) -> str:
        return f"{self.part}-{self.dtype}-{self.rule}-{self.rows}x{self.length}-{self.d_dot}"

    @property
    def feature_map(self) -> str:
        return "elu" if self.d_dot == WIDTH else "dpfp"

    def small(self) -> "Case":
        """The case with one batch row, for the check; it has more than two chunks if the case has more than one."""
        return replace(self, rows=HEADS, length=min(self.length, 320))


def _cpu() -> list[Case]:
    found = []
    for rows, length, d_dot, *limits in _CPU_FLOAT32:
        peers = _CPU_PEERS if length <= 128 else {}
        for (rule, limit), part in product(zip(RULES, limits, strict=True), ("forward", "both")):
            softmax = limit * (_BACKWARD if part == "both" else 1)
            found.append(Case(part, "float32", rule, rows, length, d_dot, {"softmax": softmax, **peers}))
    for history, d_dot, limit in _CPU_DECODE:
        found.append(Case("decode", "float32", "delta", 640, history, d_dot, {"softmax": limit}))
        found.append(Case("reorder", "float32", "delta", 640, history, d_dot, {"step": _REORDER}))
    return found


def byte_floor(case: Case) -> float:
    """The seconds in which an H200 can read and write once each what the case needs: q, k, v, beta, out, gradients."""
    size = 2  # bytes of a number
    forward = 4 * WIDTH * size + size
    backward = 7 * WIDTH * size + 2 * size  # q, k, v, grad_out read, three gradients written; beta and its gradient
    return case.rows * case.length * (forward + (backward if case.part == "both" else 0)) / _H200_BANDWIDTH


def _gpu_limits(case: Case) -> dict[str, float]:
    short = case.length <= 64 and case.d_dot <= 256
    limits: dict[str, float] = {}
    if case.part == "forward":
        if short:
            limits |= {"seconds": max(8e-6, 1.6 * byte_floor(case)), "softmax": 1.5}
        elif (case.rows, case.length, case.d_dot) == (1024, 128, 512):
            limits |= {"seconds": 72e-6, "softmax": 3.0}
    elif short:
        limits["seconds"] = max(25e-6, 2 * byte_floor(case))
    if case.rule == "delta":
        if case.length <= 64 and case.rows >= 1024 and case.d_dot <= 256:
            limits["fla"] = 1 / 4
        elif (case.rows, case.length, case.d_dot) == (64, 4096, 256):
            limits["fla"] = 1 / 2
    return limits


def _importance(case: Case) -> int:
    """The rank of the case. When the time is up the last cases are left out, so cases with targets come first."""
    if case.part == "reorder" or not case.limits:
        return 5
    if case.dtype != "bfloat16":
        return 4
    if case.part == "decode":
        return 2
    if "seconds" not in case.limits:
        return 3  # beside flash-linear-attention alone
    return 0 if case.part == "forward" else 1


def _gpu() -> list[Case]:
    shapes = [("bfloat16", shape) for shape in _GPU]
    shapes += [("float16", shape) for shape in _GPU_FLOAT16]
    found = [
        Case(part, dtype, rule, *shape) for (dtype, shape), rule, part in product(shapes, RULES, ("forward", "both"))
    ]
    found = [replace(case, limits=_gpu_limits(case)) for case in found]
    for (history, d_dot), rule in product(_GPU_DECODE, RULES):
        limits = {"seconds": 8e-6} if history <= 128 else {}
        found.append(Case("decode", "bfloat16", rule, 640, history, d_dot, limits))
        found.append(Case("reorder", "bfloat16", rule, 640, history, d_dot, {"step": _REORDER}))
    return sorted(found, key=_importance)


CASES = {"cpu": _cpu(), "cuda": _gpu()}
