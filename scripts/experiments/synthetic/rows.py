"""The models of the synthetic retrieval task by their kinds of attention, and the points of the two settings."""

from dataclasses import dataclass

# The fast weight memory is no kind of attention of this package.
FWM = {"dpfp1-fwm": "dpfp,d-dot=128", "tanh-fwm": None}
# The models of each setting, in the order of tables and figures.
MODELS = {
    1: (
        "softmax", "elu", "dpfp,d-dot=128", "dpfp,d-dot=256", "dpfp,d-dot=384", "favor,d-dot=128", "favor,d-dot=256",
        "favor,d-dot=1024",
    ),
    2: (
        "dpfp,d-dot=128", "dpfp,d-dot=128,update-rule=delta", "dpfp,d-dot=256,update-rule=delta",
        "elu,update-rule=delta", "favor,d-dot=128,update-rule=delta", "favor,d-dot=256,update-rule=delta",
        "dpfp,d-dot=128,update-rule=gated", *FWM,
    ),
}  # fmt: skip
# The numbers of keys of each setting.
SIZES = {1: range(20, 601, 20), 2: range(20, 201, 20)}
# A thinned grid, which takes 20 minutes with two jobs on 2 cores.
QUICK = {
    1: {
        "softmax": (20, 100, 200, 300, 400),
        "elu": (20, 40, 60, 80, 100, 200),
        "dpfp,d-dot=128": (20, 60, 100, 120, 140, 160, 200),
        "dpfp,d-dot=256": (20, 100, 200, 240, 280),
        "dpfp,d-dot=384": (20, 100, 200, 300, 340, 400),
        "favor,d-dot=128": (20, 40, 60, 100),
        "favor,d-dot=256": (20, 40, 60, 100),
        "favor,d-dot=1024": (20, 40, 60),
    },
    2: {
        "dpfp,d-dot=128": (20, 40, 60, 80, 100, 140, 200),
        "dpfp,d-dot=128,update-rule=delta": (20, 40, 60, 80, 100, 140, 200),
        "dpfp,d-dot=256,update-rule=delta": (20, 60, 100),
        "elu,update-rule=delta": (20, 60, 100),
        "dpfp,d-dot=128,update-rule=gated": (20, 40, 60, 100),
        "dpfp1-fwm": (20,),
        "tanh-fwm": (20,),
    },
}
D_KEY = 64
# A model is evaluated every so many steps, and has solved the task with a loss of at most SOLVED. Its training ends
# after so many evaluations in a row without a new best loss.
EVALUATE_EVERY, SOLVED, PATIENCE = 100, 0.001, 11


@dataclass(frozen=True)
class Point:
    """A model with S keys and values. ``model`` is a kind of attention, or one of FWM."""

    setting: int
    model: str
    S: int

    @property
    def name(self) -> str:
        return f"{self.model}_{self.S}"

    @property
    def replace(self) -> bool:
        """Tells whether keys are drawn with replacement."""
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
    chosen = [Point(setting, model, S) for model, several in sizes.items() for S in several]
    return tuple(sorted(chosen, key=lambda point: point.S))
