"""The options of attention with fast weights at one site, and which of them contradict each other."""

from typing import NamedTuple

from ..feature_maps import FEATURE_MAPS, FeatureMap, RandomFeatures, build_feature_map, width_for
from ..ops.call import CORRECTING

QK_NORMS = ("none", "l2")
OUTPUT_NORMS = ("none", "rms")
# Whether training draws the directions of random features anew for each update.
DIRECTIONS = ("redrawn", "fixed")
# How encoder self-attention goes through a source (:mod:`..ops.both_ways`).
PASSES = ("one", "both-ways")
# The largest beta of each; the smallest is 0.
BETA_RANGES = {"0-1": 1, "0-2": 2}
# Name to (normalize_features, normalize_output) of the operator; the heads themselves compute l2.
# "auto" means the normaliser that the paper uses with the update rule.
NORMALIZERS = {
    "attention": (False, True),
    "sum": (True, False),
    "both": (True, True),
    "none": (False, False),
    "l2": (False, False),
}
# Name to what the rule does, and the normaliser that the paper uses with it.
UPDATE_RULES = {
    "sum": ("linear attention", "attention"),
    "delta": ("replaces what the key held, with a learned strength", "sum"),
    "gated": ("all earlier content decays", "attention"),
    "gated_delta": ("all earlier content decays by a learned share, then as delta", "l2"),
}
# Name to what is written at each position, and the rule that writes it; linear without feedback has any rule.
FAST_NETS = {
    "linear": ("one matrix", "delta"),
    "rnn": ("Delta RNN: a second matrix reads the previous output", "delta"),
    "lstm": ("Delta LSTM: three gates of two matrices each", "delta"),
    "mlp": ("Delta MLP: blocks of two matrices", "delta"),
    "delta": ("Delta-Delta Net: a matrix writes a second one", "delta"),
    "fwp1991": ("one matrix that goes through tanh after each write", "sum"),
}
# What goes back into the slow net: nothing, or what was read at the previous position, through this function.
RECURRENT = ("none", "tanh", "softmax")
# Options that a site's description holds where they differ from the default.
NAMED_IF_CHOSEN = (
    "qk_norm",
    "output_norm",
    "beta_range",
    "fast_net",
    "fast_net_depth",
    "recurrent",
    "window",
    "passes",
)
# Added to every denominator.
EPS = 1e-6
_SUMS_FEATURES = ("sum", "both")


class Contradiction(NamedTuple):
    """An option that cannot be had together with the others.

    Attributes:
        options: its name, and that of the option that it contradicts if there is one.
        why: the reason.
        expected: what the first option can be instead.
    """

    options: tuple[str, ...]
    why: str
    expected: str


class SiteConfig(NamedTuple):
    """The options of one site. With ``feature_map`` "softmax" it has stock attention, and the others are unused."""

    feature_map: str
    d_dot: int | None
    update_rule: str
    normalizer: str
    backend: str = "auto"
    qk_norm: str = "none"
    output_norm: str = "none"
    beta_range: str = "0-1"
    fast_net: str = "linear"
    fast_net_depth: int | None = None
    recurrent: str = "none"
    window: int | None = None
    directions: str = "redrawn"
    passes: str = "one"

    @property
    def has_fast_net(self) -> bool:
        """Whether more than the operator is needed: another fast net than one matrix, or an output that is fed back."""
        return self.fast_net != "linear" or self.recurrent != "none"

    @property
    def _net_option(self) -> tuple[str, str]:
        """The option that chooses a fast net or feedback, and its value without one."""
        return ("fast_net", "linear") if self.fast_net != "linear" else ("recurrent", "none")

    @property
    def reads_by_softmax(self) -> bool:
        """Whether a softmax reads keys as they are projected: those of a window (:mod:`.window`)."""
        return self.window is not None

    @property
    def is_softmax(self) -> bool:
        return self.feature_map == "softmax"

    @property
    def chosen_normalizer(self) -> str:
        """What "auto" stands for; a norm of the output takes the place of a denominator, and fast nets have none."""
        if self.normalizer != "auto":
            return self.normalizer
        _, papers = UPDATE_RULES[self.update_rule]
        return "none" if papers == "attention" and (self.output_norm != "none" or self.has_fast_net) else papers

    @property
    def normalizes(self) -> tuple[bool, bool]:
        """(normalize_features, normalize_output) of the operator."""
        return NORMALIZERS[self.chosen_normalizer]

    def build_feature_map(self, d_key: int, heads: int) -> FeatureMap:
        phi = build_feature_map(self.feature_map, d_key, self.d_dot, heads=heads)
        if isinstance(phi, RandomFeatures):
            phi.redraws = self.directions == "redrawn"
        return phi

    def contradiction(self, site: str) -> Contradiction | None:
        """Finds an option that would have no effect at this site, or that cannot work with the other options."""
        causal = site == "decoder"
        if self.window is not None and (found := self._window_contradiction(causal)):
            return found
        phi, normalizer = FEATURE_MAPS[self.feature_map], self.chosen_normalizer
        if self.qk_norm != "none" and phi.homogeneity is not None:
            why = "this map is homogeneous, so the learned scale multiplies all features alike"
            return Contradiction(("qk_norm", "feature_map"), why, "none, or another map")
        if self.directions != "redrawn" and not issubclass(phi, RandomFeatures):
            return Contradiction(("directions", "feature_map"), "this map has no random directions", "redrawn")
        if self.output_norm != "none" and self.normalizes[1]:
            why = "the norm undoes what the denominator does"
            return Contradiction(("normalizer", "output_norm"), why, "auto, sum, l2 or none")
        if not phi.non_negative and normalizer in _SUMS_FEATURES:
            why = f"features of this map can be negative, so they cannot be divided by their sum ({normalizer})"
            return Contradiction(("normalizer", "feature_map"), why, "attention or none")
        if self.beta_range != "0-1" and self.update_rule not in CORRECTING:
            why = "only a rule that takes away what the key held can take away more than that"
            return Contradiction(("beta_range", "update_rule"), why, f"0-1, or the rule {' or '.join(CORRECTING)}")
        return self._pass_contradiction(site) or self._fast_net_contradiction(causal)

    def _pass_contradiction(self, site: str) -> Contradiction | None:
        if self.passes == "one":
            return None
        if site != "encoder":
            why = "only encoder self-attention can go through its positions from the last to the first"
            return Contradiction(("passes",), why, "one")
        if self.update_rule == "sum":
            return Contradiction(("passes", "update_rule"), "a sum has no order", "one, or another rule")
        return None

    def _window_contradiction(self, causal: bool) -> Contradiction | None:
        if self.window < 1:
            return Contradiction(("window",), "a position reads at least itself", "1 or more")
        if not causal:
            why = "the window is of the latest positions, which only the decoder's self-attention has"
            return Contradiction(("window",), why, "nothing: the decoder has an option of its own")
        if self.has_fast_net:
            option, _ = self._net_option
            return Contradiction(("window", option), "this net is read at every position", "nothing")
        if self.update_rule != "sum":
            why = "what is read in the window and before it is added up"
            return Contradiction(("window", "update_rule"), why, "nothing, or the rule sum")
        if self.chosen_normalizer != "attention":
            why = "what is read in the window and before it is divided by the sum of both weights"
            return Contradiction(("window", "normalizer"), why, "nothing, or the normaliser auto or attention")
        return None

    def _fast_net_contradiction(self, causal: bool) -> Contradiction | None:
        option, usual = self._net_option
        if self.fast_net_depth is not None and self.fast_net != "mlp":
            return Contradiction(
                ("fast_net_depth", "fast_net"), "only the net mlp has blocks", "nothing, or the net mlp"
            )
        if self.fast_net_depth is not None and self.fast_net_depth < 1:
            return Contradiction(("fast_net_depth",), "the net has one block or more", "1 or more")
        if not self.has_fast_net:
            return None
        if not causal:
            why = (
                "the net goes from one position to the next, as the decoder's self-attention does, and here everything "
                "is written before anything is read"
            )
            return Contradiction((option,), why, usual)
        _, rule = FAST_NETS[self.fast_net]
        if self.update_rule != rule:
            why = f"all matrices of this net are written by the {rule} rule"
            return Contradiction(("update_rule", option), why, f"{rule}, or {option.replace('_', '-')} {usual}")
        if self.normalizes[1]:
            why = f"these nets accumulate no keys, which {self.chosen_normalizer} divides by"
            return Contradiction(("normalizer", option), why, "auto, sum, l2 or none")
        if self.beta_range != "0-1":
            return Contradiction(("beta_range", option), "the strengths of these nets lie in [0, 1]", "0-1")
        return None

    def describe(self, d_key: int) -> str:
        """One line that names everything a checkpoint's weights depend on."""
        if self.is_softmax:
            return "softmax"
        width = self.d_dot or width_for(self.feature_map, d_key)
        parts = [f"feature-map={self.feature_map} d-dot={width} update-rule={self.update_rule}"]
        parts.append(f"normalizer={self.chosen_normalizer}")
        # Named only where they are chosen: checkpoints from before there was a choice say nothing of them.
        usual, chosen = SiteConfig._field_defaults, self
        if self.fast_net == "mlp":
            chosen = self._replace(fast_net_depth=self.fast_net_depth or 1)
        for name in NAMED_IF_CHOSEN:
            if (value := getattr(chosen, name)) != usual[name]:
                parts.append(f"{name.replace('_', '-')}={value}")
        return " ".join(parts)
