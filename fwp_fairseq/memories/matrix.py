"""One fast weight matrix per head."""

from torch import Tensor

from .. import ops
from ..numerics import without_autocast
from ..ops.both_ways import visible
from ..ops.call import divide
from ..ops.fast_weights import FUNCTIONS
from ..option import Options
from .features import Features
from .memory import Memory, Parts, Sizes


class Matrix(Memory):
    """Stores keys and values in one matrix per head, W <- W + v phi(k)^T (or another update rule), and reads W phi(q).

    The normaliser of the site determines whether features or outputs are divided, and by what.

    State: ``FastWeights(W, z)``, with W (B, H, d_dot, d_key) and the accumulator z (B, H, d_dot), which is None if
    outputs are not normalised. With bidirectional passes, half of the heads go backwards; such a memory reads one
    complete input and has no state.
    """

    def __init__(self, options: Options, features: Features, sizes: Sizes):
        super().__init__(options, features, sizes)
        self.has_both_ways = options.passes == "both-ways"
        self.decoding = ops.Decoding(
            options.update_rule, features.kernel_map, *options.normalizes, backend=options.backend
        )

    def attend(self, q, k, v, parts: Parts, *, key_padding_mask=None, state=None, return_state=False):
        return FUNCTIONS[self.options.update_rule](
            self.features.queries(q),
            self.features.keys(k),
            v,
            **parts,
            feature_map=self.features.kernel_map,
            causal=self.sizes.causal or self.has_both_ways,
            both_ways=self.has_both_ways,
            key_padding_mask=key_padding_mask,
            normalize_features=self.features.normalize_features,
            normalize_output=self.features.normalize_output,
            backend=self.options.backend,
            initial_state=state,
            return_state=return_state,
        )

    def weights(self, q: Tensor, k: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Computes phi(q).phi(k), (B, H, T, S), divided by the sum over all positions that the query reads.

        Under rules that overwrite or decay, the output is not the sum of values with these weights.
        """
        with without_autocast(q):
            gram = self.features.products(q, k)
            if key_padding_mask is not None:
                gram = gram.masked_fill(key_padding_mask[:, None, None], 0)
            if self.has_both_ways:
                gram = visible(gram.transpose(0, 1)).transpose(0, 1)
            elif self.sizes.causal:
                gram = gram.tril()
            return divide(gram, gram.sum(-1, keepdim=True))

    def state_shapes(self) -> ops.FastWeights:
        heads, d_dot = self.sizes.heads, self.features.d_dot
        return ops.FastWeights(
            (heads, d_dot, self.sizes.d_key), (heads, d_dot) if self.features.normalize_output else None
        )

    def decodes_lazily(self, k: Tensor) -> bool:
        return not self.has_both_ways and self.decoding.serves(self.features.keys(k))

    def _step(self, held, q, k, v, parts: Parts, key_padding_mask):
        q, k = self.features.queries(q), self.features.keys(k)
        return self.decoding.step(held, q, k, v, **parts, key_padding_mask=key_padding_mask)

    def _write(self, k, v, parts: Parts, key_padding_mask, rows) -> ops.Cache:
        return self.decoding.write(self.features.keys(k), v, **parts, key_padding_mask=key_padding_mask, rows=rows)

    def _read(self, held: ops.Cache, q: Tensor) -> Tensor:
        return self.decoding.read(held, self.features.queries(q))
