"""The models of the synthetic retrieval task and the meaning of their names in records."""

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
D_KEY = 64


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
        """The name as readers of the paper know it, e.g. "ELU+1, sum", "DPFP-2, delta" or "FAVOR+, m = 64, sum"."""
        text = self.feature_map
        if text in FEATURE_MAPS:
            text = FEATURE_MAPS[text].title
            for name in FEATURE_MAPS[self.feature_map].parameters_help:
                value = str(self.parameter)
                text = text.replace(name, value) if name in text else f"{text}, {name} = {value}"
        return text if self.rule is None else f"{text}, {self.rule}"

    def build_feature_map(self) -> FeatureMap | None:
        if self.feature_map in ("softmax", "tanh"):
            return None
        if self.feature_map == "favor":
            # The paper's FAVOR+ has no temperature. The docstring of the feature map describes the effect.
            return build_feature_map("favor", D_KEY, m=self.parameter, scale=1.0)
        return build_feature_map(self.feature_map, D_KEY, nu=self.parameter)
