"""Softmax cross-attention that stores each source once for all hypotheses of its beam."""

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from ..ops.source import read_source, source_weights
from ..options import SiteOptions
from . import incremental_state as states
from .fairseq_attention import AttentionCall, FairseqAttention
from .rotary import CrossPositions, rotated
from .shared_source import SharedSource
from .source_window import SourceWindow

_SOFTMAX = SiteOptions("softmax")


class SoftmaxCrossAttention(FairseqAttention, MultiheadAttention):
    """fairseq's encoder-decoder attention, with the same results, parameters and options.

    In beam search, fairseq keeps a copy of a source's keys and values for each hypothesis, and multiplies each query
    with its copy. Here, each source is stored once, and the queries of all its hypotheses are multiplied with it
    together. This divides the memory by the beam size, and replaces several one-row products by one product. fairseq's
    generator sets the number of hypotheses per sentence, and the encoder says which source each hypothesis reads;
    without them, every row has a separate source.

    Everything else is left to fairseq: training, scoring, decoding under autograd, and the options that change keys or
    weights (bias_k, add_zero_attn, xformers). With rotary positions, which fairseq lacks, everything is computed here.

    Args:
        options: the options of this site. With ``source_window``, a step reads only that many positions of its source
            (:mod:`.source_window`), so results differ from fairseq's, and there are no weights. ``positions`` can be
            rotary.

    Attributes:
        target_pads: (R, T), True at the padding in the next call's queries, which rotary positions do not count; None
            if there is none.
    """

    def __init__(self, *args, options: SiteOptions = _SOFTMAX, **kwargs):
        super().__init__(*args, **kwargs)
        self.site, self.options, self.source_window = "cross", options, options.source_window
        self.positions = None if options.positions == "none" else CrossPositions(self.head_dim)
        self.target_pads: Tensor | None = None
        self._weights_requested = True

    @property
    def shows_weights_in_steps(self) -> bool:
        """Returns True if decoding steps return weights: if they were requested and there is no source window.

        fairseq requests weights in every step and keeps them all, a number for each pair of positions, even if no
        alignments are wanted.
        """
        return self._weights_requested and self.source_window is None

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor | None]:
        query, key, incremental_state = call.query, call.key, call.incremental_state
        saved = states.load(self, incremental_state)
        source, rows = saved.get("source"), states.source_rows(incremental_state)
        angle, saved = self._query_angles(query, saved)
        if source is None and not (call.static_kv and incremental_state is not None and self._can_share(call)):
            if rows is not None and (self.positions is not None or not saved):
                call = _call_of_rows(call, rows.flatten())
            if self.positions is None:
                return MultiheadAttention.forward(self, **call._asdict())
            if incremental_state is not None:
                states.store(self, incremental_state, saved)
            if call.before_softmax or call.attn_mask is not None:
                raise NotImplementedError("before_softmax and attn_mask: cross-attention with positions has none")
            out, weights = self._read(query, self._write(call.key, call.key_padding_mask, None, None), angle)
            return out, _shown(weights, call)
        if torch.is_grad_enabled():
            raise RuntimeError("decoding began under torch.no_grad() and cannot be differentiated from here on")
        if source is None:
            source = self._write(key, call.key_padding_mask, rows, self.source_window)
            saved = saved | {"source": source}
        states.store(self, incremental_state, saved)
        if isinstance(source, SourceWindow):
            angles = [None] * len(query) if angle is None else angle.split(1)
            steps = zip(query.split(1), angles, strict=True)
            return torch.cat([self._read_near(*step, source) for step in steps]), None
        if not self.shows_weights_in_steps:
            q = self._queries(query, source, angle)
            return self._output(read_source(q, source.keys, source.values, key_padding_mask=source.pads), query), None
        out, weights = self._read(query, source, angle)
        return out, _shown(weights, call)

    def _query_angles(self, query: Tensor, saved: dict) -> tuple[Tensor | None, dict]:
        """Computes the angles of queries, (T, R, 1, P) for P rotated pairs of coordinates.

        Also returns ``saved``, updated with the number of tokens up to the last query, (R,).
        """
        if self.positions is None:
            return None, saved
        tokens = query.new_ones(query.shape[:2], dtype=torch.int64)
        pads, self.target_pads = self.target_pads, None
        if pads is not None:
            tokens = (~pads.bool()).long().T
        after = tokens.cumsum(0) + saved.get("tokens", 0)
        return self.positions.target_angles(after - 1, query), saved | {"tokens": after[-1]}

    def _can_share(self, call: AttentionCall) -> bool:
        changes_keys = self.bias_k is not None or self.add_zero_attn or self.use_xformers
        return not torch.is_grad_enabled() and call.attn_mask is None and not changes_keys and not self.training

    def _write(
        self, key: Tensor, key_padding_mask: Tensor | None, rows: Tensor | None, window: int | None
    ) -> SharedSource | SourceWindow:
        if rows is None:  # row r reads source r
            rows = torch.arange(key.shape[1], device=key.device)[:, None]
        position = torch.arange(len(key), device=key.device)[:, None]
        pads = None if key_padding_mask is None else key_padding_mask.bool()
        if pads is not None:
            position = position - (~pads).int().argmax(1)
        k, v = self._project(key, position)
        if window is not None and window < len(key):
            return SourceWindow(window, k, v, pads, rows.flatten())
        k, v = k.permute(1, 2, 3, 0), v.permute(1, 2, 0, 3)
        sources = rows[:, 0]
        k, v, pads = (None if x is None else x.index_select(0, sources) for x in (k, v, pads))
        return SharedSource(k, v, pads, rows.shape[1])

    def _project(self, key: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """Projects sources (S, N, C) at positions (S, N or 1) to keys and values (S, N, H, d)."""
        k, v = (proj(key).unflatten(-1, (self.num_heads, -1)) for proj in (self.k_proj, self.v_proj))
        return k if self.positions is None else rotated(k, self.positions.source_angles(position, k)), v

    def _read_near(self, query: Tensor, angle: Tensor | None, source: SourceWindow) -> Tensor:
        """Reads each row's source window with query (1, R, C)."""
        near, position = source.near()
        out, weights = self._read(query, near, angle)
        source.advance(weights, position)
        return out

    def _read(self, query: Tensor, source: SharedSource, angle: Tensor | None) -> tuple[Tensor, Tensor]:
        """Reads each row's source with query (T, R, C).

        Returns the output (T, R, C) and the weights (N, H, (R / N) T, S). ``angle`` is that of the queries.
        """
        q = self._queries(query, source, angle)
        weights = source_weights(q, source.keys, source.pads)
        out = self.dropout_module(weights.type_as(q)) @ source.values
        return self._output(out.transpose(1, 2), query), weights

    def _queries(self, query: Tensor, source: SharedSource, angle: Tensor | None) -> Tensor:
        """Projects query (T, R, C) to the queries of each source, (N, (R / N) T, H, d_key).

        ``angle`` (T, R, 1, P) rotates them; it is None without rotary positions.
        """
        q = (self.q_proj(query) * self.scaling).unflatten(-1, (self.num_heads, self.head_dim))
        q = q if angle is None else rotated(q, angle)
        return q.unflatten(1, (-1, source.beam)).permute(1, 2, 0, 3, 4).flatten(1, 2)

    def _output(self, out: Tensor, query: Tensor) -> Tensor:
        """Projects what the queries of each source read, (N, (R / N) T, H, d_value), to the result (T, R, C)."""
        out = out.unflatten(1, (-1, len(query))).permute(2, 0, 1, 3, 4)
        return self.out_proj(out.reshape(query.shape))

    def make_generation_fast_(self, need_attn: bool = False, **kwargs) -> None:
        """Prepares for decoding: without --print-alignment (``need_attn``), steps return no attention weights."""
        self._weights_requested = need_attn

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> dict:
        if self.positions is None and "source" not in states.load(self, incremental_state):
            return MultiheadAttention.reorder_incremental_state(self, incremental_state, new_order)
        return super().reorder_incremental_state(incremental_state, new_order)


def _call_of_rows(call: AttentionCall, rows: Tensor) -> AttentionCall:
    """Returns the call with a separate source for each row."""
    pads = call.key_padding_mask
    key = call.key.index_select(1, rows)
    return call._replace(key=key, value=key, key_padding_mask=None if pads is None else pads.index_select(0, rows))


def _shown(weights: Tensor, call: AttentionCall) -> Tensor | None:
    """Converts weights (N, H, (R / N) T, S) to the form that the caller requested, by rows (H, R, T, S)."""
    if not call.wants_weights:
        return None
    return call.shown(weights.unflatten(2, (-1, len(call.query))).transpose(0, 1).flatten(1, 2))


def set_source_window_(model: nn.Module, size: int) -> None:
    """Gives the softmax cross-attention of a model a source window of ``size`` positions.

    Call it before the model is prepared for decoding. Raises ValueError if there is no such attention.
    """
    attentions = [module for module in model.modules() if isinstance(module, SoftmaxCrossAttention)]
    if not attentions:
        raise ValueError("the model has no softmax cross-attention of this plugin (fwp convert opens fairseq's models)")
    for attention in attentions:
        attention.source_window = size
