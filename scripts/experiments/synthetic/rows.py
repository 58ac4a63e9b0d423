"""The models of the synthetic retrieval task, the meaning of their names, and the points of the two settings."""

from dataclasses import dataclass
from typing import NamedTuple

from fwp_fairseq.feature_maps import FEATURE_MAPS, FeatureMap, build_feature_map

# The models of each setting, in the order of tables and figures.
MODELS = {
    1: (
        "softmax", "elu-sum", "dpfp1-sum", "dpfp2-sum", "dpfp3-sum", "favor64-sum", "favor128-sum", "favor512-sum",
    ),
    2: (
        "dpfp1-sum", "dpfp1-delta", "dpfp2-delta", "elu-delta", "favor64-delta", "favor128-delta", "dpfp1-gated",
        "dpfp1-fwm", "tanh-fwm",
    ),
}  # fmt: skip
# The numbers of keys of each setting.
SIZES = {1: range(20, 601, 20), 2: range(20, 201, 20)}
# A thinned grid, which takes 20 minutes with two jobs on 2 cores.
QUICK = {
    1: {
        "softmax": (20, 100, 200, 300, 400),
        "elu-sum": (20, 40, 60, 80, 100, 200),
        "dpfp1-sum": (20, 60, 100, 120, 140, 160, 200),
        "dpfp2-sum": (20, 100, 200, 240, 280),
        "dpfp3-sum": (20, 100, 200, 300, 340, 400),
        "favor64-sum": (20, 40, 60, 100),
        "favor128-sum": (20, 40, 60, 100),
        "favor512-sum": (20, 40, 60),
    },
    2: {
        "dpfp1-sum": (20, 40, 60, 80, 100, 140, 200),
        "dpfp1-delta": (20, 40, 60, 80, 100, 140, 200),
        "dpfp2-delta": (20, 60, 100),
        "elu-delta": (20, 60, 100),
        "dpfp1-gated": (20, 40, 60, 100),
        "dpfp1-fwm": (20,),
        "tanh-fwm": (20,),
    },
}
D_KEY = 64
# A model is evaluated every so many steps, and has solved the task with a loss of at most SOLVED. Its training ends
# after so many evaluations in a row without a new best loss.
EVALUATE_EVERY, SOLVED, PATIENCE = 100, 0.001, 11


class Variant(NamedTuple):
    """The feature map and update rule of a model, e.g. ``Variant("dpfp", 2, "delta")``; softmax has no rule."""

    feature_map: str
    parameter: int | None
    rule: str | None

    @classmethod
    def of(cls, name: str) -> "Variant":
        """Parses a name such as ``softmax``, ``elu-sum``, ``dpfp2-delta``, ``favor64-sum`` or ``tanh-fwm``."""
        feature_map, _, rule = name.partition("-")
        letters = feature_map.rstrip("0123456789")
        parameter = int(feature_map[len(letters) :]) if letters != feature_map else None
        return cls(letters, parameter, rule or None)

    @property
    def title(self) -> str:
        """The name as readers of the paper know it, e.g. "ELU+1, sum rule" or "FAVOR+, m = 64, delta rule"."""
        text = self.feature_map
        if text in FEATURE_MAPS:
            text = FEATURE_MAPS[text].title
            for name in FEATURE_MAPS[self.feature_map].parameters_help:
                value = str(self.parameter)
                text = text.replace(name, value) if name in text else f"{text}, {name} = {value}"
        rule = "fast weight memory" if self.rule == "fwm" else f"{self.rule} rule"
        return text if self.rule is None else f"{text}, {rule}"

    def build_feature_map(self) -> FeatureMap | None:
        if self.feature_map in ("softmax", "tanh"):
            return None
        if self.feature_map == "favor":
            return build_feature_map("favor", D_KEY, m=self.parameter)
        return build_feature_map(self.feature_map, D_KEY, nu=self.parameter)


@dataclass(frozen=True)
class Point:
    """A model with S keys and values. ``model`` is a name that :class:`Variant` parses."""

    setting: int
    model: str
    S: int

    @property
    def name(self) -> str:
        return f"{self.model}-{self.S}"

    @property
    def replace(self) -> bool:
        """Whether keys are drawn with replacement."""
        return self.setting == 2

    @property
    def batch(self) -> int:
        """The batch size; the authors gave the fast weight memory with tanh a larger one, and a smaller step."""
        return 128 if self.model == "tanh-fwm" else 32

    @property
    def lr(self) -> float:
        return 1e-4 if self.model == "tanh-fwm" else 1e-3


def points(setting: int, sizes: dict[str, tuple[int, ...]] | None = None) -> tuple[Point, ...]:
    """Returns the points of a setting, or those of these models and sizes, the ones with few keys first."""
    sizes = sizes or {model: SIZES[setting] for model in MODELS[setting]}
    found = [Point(setting, model, S) for model, several in sizes.items() for S in several]
    return tuple(sorted(found, key=lambda point: point.S))
