"""The decoder of language models, which reads a text at once, step by step, or in segments with a carried state."""

from fairseq.modules import LearnedPositionalEmbedding
from torch import Tensor, nn

from ..modules import FastWeightSiteAttention
from ..modules.carried_state import Segment, States
from .fwp_transformer import FwpDecoder, named_state

_UNLIMITED = 10**9


def _carries(layer: nn.Module) -> bool:
    """Returns True if the layer's attention has a state of bounded size, which softmax attention lacks."""
    return hasattr(getattr(layer, "self_attn", None), "empty_state")


class FwpLanguageModelDecoder(FwpDecoder):
    """fairseq's decoder without cross-attention, which can also read segments of streams."""

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out=None,
        incremental_state: dict | None = None,
        features_only: bool = False,
        segment: Segment | None = None,
        offsets: Tensor | None = None,
        **kwargs,
    ):
        """Reads tokens as fairseq's decoder does, or as the next segments of streams.

        Args:
            prev_output_tokens: (B, T); row b contains the next T tokens of stream b, padded on the right.
            segment: how to read them, with the carried state; None for a text that is read at once.
            offsets: (B,), number of tokens of each stream before this segment. A row with offset 0 starts from an empty
                state.

        Returns:
            fairseq's ``(x, extra)``. The state at the end of the segment is in ``segment.state``.

        Raises:
            ValueError: the feature map resamples its projection for each update, and cannot read what was written with
                an earlier one.
        """
        if segment is None:
            return super().forward(prev_output_tokens, encoder_out, incremental_state, features_only, **kwargs)
        if segment.state is not None and self.training:
            self._refuse_redrawn_features()
        x, after = self._read(prev_output_tokens, segment.initial(offsets))
        segment.finish(after)
        return x if features_only else self.output_layer(x), {"attn": [None]}

    def max_positions(self) -> int:
        """Returns fairseq's limit, or practically none if the model has neither positions nor softmax attention."""
        bounded = all(map(_carries, self.layers.children()))
        return _UNLIMITED if bounded and self.embed_positions is None else super().max_positions()

    def _refuse_redrawn_features(self) -> None:
        for module in self.modules():
            if isinstance(module, FastWeightSiteAttention) and getattr(module.feature_map, "redraws", False):
                raise ValueError(
                    f"--fwp-state carried contradicts feature map {module.feature_map.name}, which draws other "
                    "features for each update of a training: expected --fwp-state reset, --fwp-directions fixed or "
                    "another feature map"
                )

    def _embed(self, tokens: Tensor) -> Tensor:
        """Computes the input of the first layer, (B, T, C), like fairseq's decoder."""
        x = self.embed_scale * self.embed_tokens(tokens.contiguous())
        if self.quant_noise is not None:
            x = self.quant_noise(x)
        if self.project_in_dim is not None:
            x = self.project_in_dim(x)
        if self.embed_positions is not None:
            x = x + self._embed_positions(tokens)
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        return self.dropout_module(x)

    def _embed_positions(self, tokens: Tensor) -> Tensor:
        learned = isinstance(self.embed_positions, LearnedPositionalEmbedding)
        if learned and tokens.shape[1] > self.max_positions():
            raise ValueError(
                f"--tokens-per-sample {tokens.shape[1]}: this model has {self.max_positions()} learned positions, "
                "expected at most as many tokens"
            )
        return self.embed_positions(tokens)

    def _read(self, tokens: Tensor, states: States) -> tuple[Tensor, States]:
        """Reads a segment; returns features (B, T, C) and the state at its end."""
        x = self._embed(tokens).transpose(0, 1)
        padding = tokens.eq(self.padding_idx)
        padding[:, 0] = False  # in a row whose stream has ended, softmax over nothing would be NaN
        padding = padding if padding.any() else None
        behind = {}
        number_of = {layer: number for number, layer in enumerate(self.layers.children())}
        for layer, number in number_of.items():
            if _carries(layer):
                nothing, begun = layer.self_attn.empty_state(len(tokens), x), states.get(number)
                behind[number] = type(nothing)(*begun) if begun else nothing
        for layer in self.layers:  # with layer drop, some of them
            number, options = number_of[layer], {}
            if number in behind:
                options = named_state(behind[number])
            x, _, *after = layer(
                x, self_attn_mask=self.buffered_future_mask(x), self_attn_padding_mask=padding, **options
            )
            if number in behind:
                behind[number] = type(behind[number])(*after)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)
        return x if self.project_out_dim is None else self.project_out_dim(x), behind
