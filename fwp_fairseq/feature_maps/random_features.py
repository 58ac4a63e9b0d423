"""The base class of maps with random features, which defines their width and resamples their directions."""

from typing import ClassVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from .feature_map import FeatureMap


class RandomFeatures(FeatureMap):
    """A map with two features for each of m random directions, which a subclass draws; d_dot = 2m.

    ``projection`` is drawn once, used in evaluation, and saved with the model in float32 (even after ``.half()``). In
    training, :meth:`set_num_updates`, which fairseq calls before every update, resamples the directions, unless
    :attr:`redraws` is False. They depend only on the saved seed and the number of updates, so that all workers, a
    resumed run and recomputed activations use the same ones.

    Attributes:
        redraws: False if training uses the directions of evaluation, to which the rest of the model then adapts.
    """

    redraws: bool = True
    parameters_help: ClassVar = {"m": "number of random directions"}

    def __init__(self, d_key: int, m: int):
        super().__init__(d_key, self.width_for(d_key, m=m))
        self.m = m

    def register_directions(self) -> None:
        """Draws the seed and the first directions into buffers; subclasses call this at the end of ``__init__``."""
        self.register_buffer("seed", torch.randint(2**31, ()))
        self.register_buffer("projection", self._draw(0))
        self.register_buffer("training_projection", self.projection.clone(), persistent=False)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draws a new seed and its directions."""
        self.seed.copy_(torch.randint(2**31, ()))
        self.projection.copy_(self._draw(0))
        self._train_with(self.projection)

    def draw(self, generator: torch.Generator) -> Tensor:
        """Draws directions, float32, on the CPU."""
        raise NotImplementedError

    @property
    def directions_shape(self) -> tuple[int, ...]:
        """Returns the shape of the result of :meth:`draw`."""
        raise NotImplementedError

    def _draw(self, num_updates: int) -> Tensor:
        if self.seed.is_meta or isinstance(self.seed, FakeTensor):  # shapes only, and no seed
            return self.seed.new_empty(self.directions_shape, dtype=torch.float32)
        with torch.device("cpu"):  # where the generator is, whatever the default device
            return self.draw(torch.Generator().manual_seed((int(self.seed) * 1_000_003 + num_updates) % 2**63))

    def set_num_updates(self, num_updates: int) -> None:
        """Draws the directions for the next training batch if :attr:`redraws`; evaluation keeps its directions."""
        if not self.redraws:
            return
        self._train_with(self._draw(int(num_updates) + 1).to(self.projection.device))

    def _train_with(self, directions: Tensor) -> None:
        with torch.inference_mode(False):  # the gradient of training needs an ordinary tensor
            self.training_projection = directions.clone()

    def _load_from_state_dict(self, state_dict, prefix, *args):
        super()._load_from_state_dict(state_dict, prefix, *args)
        # Until the next draw, training uses the directions of evaluation, as in a new map.
        self._train_with(self.projection)

    def _apply(self, fn, *args, **kwargs):
        projections = self.projection, self.training_projection
        super()._apply(fn, *args, **kwargs)
        if self.projection.dtype in (torch.float16, torch.bfloat16):
            self.projection, self.training_projection = (p.to(self.projection.device) for p in projections)
        return self

    def current_projection(self) -> Tensor:
        return self.training_projection if self.training and self.redraws else self.projection

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, m={self.m}"

    @classmethod
    def unit(cls, d_key: int) -> int:
        return 2
