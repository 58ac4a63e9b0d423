"""Random calls of the compiled operators: valid ones, and those with up to two changes.

Sizes change, types, devices, layouts, memory shared with another argument, the content of tables, and numbers.
"""

import contextlib
import math

import hypothesis
import torch
from hypothesis import strategies as st

from fwp_fairseq._operator import HAS_LIBRARY
from fwp_fairseq.ops.call import DECAYING, GATES, RULES

SIZES = st.sampled_from([1, 2, 3, 5])
MAPS = torch.ops.fwp.feature_maps() if HAS_LIBRARY else []
BOTH = GATES["gated_delta"]
# What fwp::fold takes of the arguments of fwp::decode.
FOLD = ["keys", "written", "strengths", "ancestors", "rows", "W", "z", "count", "rule", "feature_map", "d_dot"]
FOLD += ["normalize_output"]
WRONG_SIZES = [0, 1, 2, 7, 2**31, 2**40, 2**62]
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.bool]
TYPES += [torch.complex64]
INTEGERS = [-(2**63), -(2**31), -1, 0, 1, 2, 6, 2**31 - 1, 2**31, 2**32 + 1, 2**62, 2**63 - 1]
NUMBERS = [0.0, -1.0, 1e-45, 1e300, math.inf, -math.inf, math.nan]
WORDS = [*RULES, *MAPS, "", "\0", "sum\0", "q" * 5000]


def positions(draw, batch: int, length: int, *sizes: int, dtype) -> torch.Tensor:
    """(batch, length, ...), as it is or a view of fairseq's (length, batch, ...)."""
    if draw(st.booleans()):
        return torch.rand(length, batch, *sizes, dtype=dtype).transpose(0, 1)
    return torch.rand(batch, length, *sizes, dtype=dtype)


def options(draw, d_key: int) -> dict:
    name = draw(st.sampled_from(MAPS))
    m = draw(SIZES)
    d_dot = {"dpfp": 2 * d_key, "favor": 2 * m, "softmax_pair": 2 * d_key}.get(name, d_key)
    flags = [draw(st.booleans()) for _ in range(2)]
    return {
        "rule": draw(st.sampled_from(RULES)), "feature_map": name, "d_dot": d_dot,
        "normalize_features": flags[0], "normalize_output": flags[1], "eps": 1e-6,
    }  # fmt: skip


def of_whole_sequences(draw) -> dict:
    """The arguments of fwp::fast_weights by name, all as it wants them."""
    B, S, H, d_key, d_value = (draw(SIZES) for _ in range(5))
    given, causal = options(draw, d_key), draw(st.booleans())
    T = S if causal else draw(SIZES)
    taken = draw(st.sampled_from([torch.float32, torch.float64]))
    state, d_dot = draw(st.booleans()), given["d_dot"]
    x = {
        "q": positions(draw, B, T, H, d_key, dtype=taken),
        "k": positions(draw, B, S, H, d_key, dtype=taken),
        "v": positions(draw, B, S, H, d_value, dtype=taken),
        **{name: positions(draw, B, S, H, dtype=taken) if name in GATES[given["rule"]] else None for name in BOTH},
        "key_padding_mask": torch.rand(B, S) > 0.5 if draw(st.booleans()) else None,
        "initial_W": torch.rand(B, H, d_dot, d_value, dtype=taken) if state else None,
        "initial_z": torch.rand(B, H, d_dot, dtype=taken) if state and given["normalize_output"] else None,
        "projection": torch.rand(d_dot // 2, d_key, dtype=taken) if given["feature_map"] == "favor" else None,
    }
    names = (
        "rule", "feature_map", "d_dot", "causal", "both_ways", "normalize_features", "normalize_output",
        "eps",
    )  # fmt: skip
    given |= {"causal": causal, "both_ways": causal and H % 2 == 0 and draw(st.booleans())}
    return x | {name: given[name] for name in names} | {"return_state": draw(st.booleans())}


def of_gradients(draw) -> dict:
    x = of_whole_sequences(draw)
    del x["return_state"]
    (B, T, H, _), taken = x["q"].shape, x["q"].dtype
    d_value, state = x["v"].shape[3], draw(st.booleans())
    gradients = {
        "grad_out": positions(draw, B, T, H, d_value, dtype=taken),
        "grad_W": torch.rand(B, H, x["d_dot"], d_value, dtype=taken) if state else None,
        "grad_z": torch.rand(B, H, x["d_dot"], dtype=taken) if state and x["normalize_output"] else None,
    }
    return gradients | x


def of_a_step(draw) -> dict:
    """The arguments of fwp::decode; those of fwp::fold are among them."""
    R, T, H, d_key, d_value = (draw(SIZES) for _ in range(5))
    given, taken = options(draw, d_key), draw(st.sampled_from([torch.float32, torch.float64]))
    d_dot, favor = given["d_dot"], given["feature_map"] == "favor"
    writes, count, stored = draw(st.booleans()), draw(SIZES), R + draw(SIZES)
    room, strengths = count + T + draw(SIZES), GATES[given["rule"]]
    state, rows = draw(st.booleans()), draw(SIZES)
    x = {
        "q": positions(draw, R, T, H, d_key, dtype=taken),
        "k": positions(draw, R, T, H, d_key, dtype=taken) if writes else None,
        "v": positions(draw, R, T, H, d_value, dtype=taken) if writes else None,
        **{name: positions(draw, R, T, H, dtype=taken) if writes and name in strengths else None for name in BOTH},
        "key_padding_mask": torch.rand(R, T) > 0.5 if writes and draw(st.booleans()) else None,
        "keys": torch.rand(room, stored, H, d_key if given["feature_map"] == "dpfp" else d_dot, dtype=taken),
        "written": torch.rand(room, stored, H, d_value, dtype=taken),
        "strengths": torch.rand(room, stored, H, dtype=taken) if given["rule"] in DECAYING else None,
        "ancestors": (torch.rand(R, room) * stored).int(),
        "rows": (torch.rand(R) * min(rows, stored)).int(),
        "W": torch.rand(rows, H, d_dot, d_value, dtype=taken) if state else None,
        "z": torch.rand(rows, H, d_dot, dtype=taken) if state and given["normalize_output"] else None,
        "projection": torch.rand(d_key, d_dot // 2, dtype=taken) if favor else None,
        "count": count,
    }
    if not writes and draw(st.booleans()):
        x["ancestors"] = None
    return x | given


def of_a_fold(draw) -> dict:
    x = of_a_step(draw)
    hypothesis.assume(x["ancestors"] is not None)
    if x["feature_map"] != "dpfp":  # the cache then holds features
        x["feature_map"] = "identity"
    return {name: x[name] for name in FOLD}


def of_a_recurrence(draw, lstm: bool = False) -> dict:
    """The arguments of fwp::recur or fwp::recur_lstm."""
    B, L, H, d = (draw(SIZES) for _ in range(4))
    gates = 3 * H if lstm else H
    taken, state = draw(st.sampled_from([torch.float32, torch.float64])), draw(st.booleans())
    return {
        **{name: positions(draw, B, L, gates, d, dtype=taken) for name in ("z", "k", "v")},
        "beta": positions(draw, B, L, gates, dtype=taken),
        "key_padding_mask": torch.rand(B, L) > 0.5 if draw(st.booleans()) else None,
        "R": torch.rand(B, gates, d, d, dtype=taken) if state else None,
        **{name: torch.rand(B, H, d, dtype=taken) if state else None for name in (("h", "c") if lstm else ("y",))},
    }


def of_recurrent_gradients(draw, lstm: bool = False) -> dict:
    x = of_a_recurrence(draw, lstm)
    del x["z"], x["R"]
    (B, L, gates, d), taken, state = x["k"].shape, x["k"].dtype, draw(st.booleans())
    H, vectors, kept = (gates // 3, "hc", ("found", "cells")) if lstm else (gates, "y", ("found",))
    return {
        "grad_out": positions(draw, B, L, H, d, dtype=taken),
        "grad_R": torch.rand(B, gates, d, d, dtype=taken) if state else None,
        **{f"grad_{name}": torch.rand(B, H, d, dtype=taken) if state else None for name in vectors},
        **{name: positions(draw, B, L, H, d, dtype=taken) for name in kept},
        **({"gates": positions(draw, B, L, gates, d, dtype=taken)} if lstm else {}),
        "last_R": torch.rand(B, gates, d, d, dtype=taken),
        "written": positions(draw, B, L, gates, d, dtype=taken),
    } | x


def of_a_window(draw) -> dict:
    """The arguments of fwp::read_window."""
    B, T, H, d, earlier = (draw(SIZES) for _ in range(5))
    taken, far = draw(st.sampled_from([torch.float32, torch.float64])), draw(st.integers(0, T))
    stored, S, rows = draw(st.booleans()), T + earlier, 7
    return {
        "q": positions(draw, B, T, H, d, dtype=taken),
        **{name: positions(draw, *((rows, 1) if stored else (B, S)), H, d, dtype=taken) for name in ("k", "v")},
        "sums": positions(draw, B, far, H, d + 1, dtype=taken) if draw(st.booleans()) else None,
        "u": torch.rand(H, d, dtype=taken),
        "bias": torch.rand(H, dtype=taken),
        "key_padding_mask": torch.rand(B, S) > 0.5 if draw(st.booleans()) else None,
        "places": (torch.rand(B, S) * rows).int() if stored else None,
        "size": draw(SIZES),
    }


def of_gradients_of_a_window(draw) -> dict:
    x = of_a_window(draw)
    (B, T, H, d), taken, earlier = x["q"].shape, x["q"].dtype, draw(SIZES)
    if x.pop("places") is not None:
        x |= {name: positions(draw, B, T + earlier, H, d, dtype=taken) for name in ("k", "v")}
        x["key_padding_mask"] = None
    return {"grad_out": positions(draw, B, T, H, d, dtype=taken)} | x


def of_a_source(draw) -> dict:
    """The arguments of fwp::read_source."""
    N, T, H, d, d_value, S = (draw(SIZES) for _ in range(6))
    taken, pads = draw(st.sampled_from([torch.float32, torch.float64])), torch.rand(N, S) > 0.5
    pads[:, :1] = False  # opcheck finds that NaN differs from NaN
    return {
        "q": positions(draw, N, T, H, d, dtype=taken),
        "keys": positions(draw, N, H, d, S, dtype=taken),
        "values": positions(draw, N, H, S, d_value, dtype=taken),
        "key_padding_mask": pads if draw(st.booleans()) else None,
    }


def of_a_softmax_pair(draw) -> dict:
    B, L, H, n = (draw(SIZES) for _ in range(4))
    return {"y": positions(draw, B, L, H, n, dtype=draw(st.sampled_from([torch.float32, torch.float64])))}


def of_gradients_of_a_softmax_pair(draw) -> dict:
    y = of_a_softmax_pair(draw)["y"]
    return {name: positions(draw, *y.shape[:3], 2 * y.shape[3], dtype=y.dtype) for name in ("grad_f", "f")}


def of_unit_rows(draw) -> dict:
    return {"x": of_a_softmax_pair(draw)["y"], "eps": draw(st.sampled_from([0.0, 1e-6, 1.0]))}


def of_gradients_of_unit_rows(draw) -> dict:
    x = of_unit_rows(draw)
    return {"grad_y": positions(draw, *x["x"].shape, dtype=x["x"].dtype)} | x


def resized(draw, x, others):
    shape, size = list(x.shape), draw(st.sampled_from(WRONG_SIZES))
    if not shape:
        return x.expand(size)
    i = draw(st.integers(0, len(shape) - 1))
    shape[i] = size
    if size > 7 and draw(st.booleans()):  # no element at all, and yet so large
        shape[draw(st.integers(0, len(shape) - 1))] = 0
        return torch.empty(shape, dtype=x.dtype) if 0 in shape else x
    if math.prod(shape) >= 2**63:
        return x
    if size > 7:
        return x.narrow(i, 0, min(1, x.shape[i])).expand(shape) if x.shape[i] else x
    return torch.zeros(shape, dtype=x.dtype)


def of_other_rank(draw, x, others):
    return draw(st.sampled_from([lambda: x[None], lambda: x.flatten(), lambda: x.sum(), lambda: x[..., None]]))()


def strided(draw, x, others):
    if x.dim() == 0:
        return x
    i = draw(st.integers(0, x.dim() - 1))
    kind = draw(st.sampled_from(["every second", "transposed", "repeated", "overlapping", "shifted"]))
    if kind == "every second":
        return torch.stack([x, x], dim=i + 1).flatten(i, i + 1).unflatten(i, (x.shape[i], 2)).select(i + 1, 0)
    if kind == "transposed":
        return x.transpose(i, -1).contiguous().transpose(i, -1)
    if kind == "repeated":
        return x.narrow(i, 0, min(1, x.shape[i])).expand(x.shape) if x.shape[i] else x
    if kind == "overlapping":
        return torch.zeros(x.numel() + 9, dtype=x.dtype).as_strided(x.shape, [1] * x.dim())
    return torch.zeros(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape)  # not aligned to 16 bytes


def shared(draw, x, others):
    """x in the memory of another tensor, if it has room there."""
    fitting = [y for y in others if y.is_contiguous() and y.nbytes >= x.nbytes and y.device == x.device and y.nbytes]
    if not fitting or x.dtype == torch.bool:  # torch itself lets no byte but 0 and 1 be one
        return x
    raw = draw(st.sampled_from(fitting)).detach().view(-1).view(torch.uint8)[: x.nbytes]
    return raw.view(x.dtype).view(x.shape)


def of_any_content(draw, x, others):
    if x.dtype in (torch.int32, torch.int64):
        return torch.full_like(x, draw(st.sampled_from([-(2**31), -1, 0, 1, 2, 3, 5, 8, 2**31 - 1])))
    return torch.full_like(x, draw(st.sampled_from(NUMBERS))) if x.is_floating_point() else ~x


CHANGES = {
    "size": resized, "rank": of_other_rank, "layout": strided, "shared": shared, "content": of_any_content,
    "missing": lambda draw, x, others: None,
    "type": lambda draw, x, others: x.to(draw(st.sampled_from(TYPES))),
    "device": lambda draw, x, others: x.to("meta"),
    "gradient": lambda draw, x, others: x.clone().requires_grad_() if x.is_floating_point() else x,
    "sparse": lambda draw, x, others: x.to_sparse(),
    "list": lambda draw, x, others: [1.0],
}  # fmt: skip


def changed(draw, arguments: dict) -> list[str]:
    """Changes up to two arguments, and returns what was changed."""
    done = []
    for name in draw(st.lists(st.sampled_from(list(arguments)), max_size=2, unique=True)):
        x = arguments[name]
        if isinstance(x, bool):
            arguments[name] = not x
        elif isinstance(x, int):
            arguments[name] = draw(st.sampled_from([*INTEGERS, x - 1, x + 1]))
        elif isinstance(x, float):
            arguments[name] = draw(st.sampled_from(NUMBERS))
        elif isinstance(x, str):
            arguments[name] = draw(st.sampled_from(WORDS))
        elif x is None:
            arguments[name] = torch.rand(draw(st.lists(SIZES, max_size=4))).to(draw(st.sampled_from(TYPES)))
        else:
            change = draw(st.sampled_from(list(CHANGES)))
            others = [y for other, y in arguments.items() if other != name and isinstance(y, torch.Tensor)]
            with contextlib.suppress(RuntimeError):  # torch itself makes no such tensor
                arguments[name] = CHANGES[change](draw, x, [y for y in others if y.layout == torch.strided])
            done.append(f"{name}: {change}")
            continue
        done.append(name)
    return done


OPERATORS = {
    "fast_weights": of_whole_sequences,
    "fast_weights_backward": of_gradients,
    "decode": of_a_step,
    "fold": of_a_fold,
    "recur": of_a_recurrence,
    "recur_backward": of_recurrent_gradients,
    "recur_lstm": lambda draw: of_a_recurrence(draw, lstm=True),
    "recur_lstm_backward": lambda draw: of_recurrent_gradients(draw, lstm=True),
    "read_window": of_a_window,
    "read_window_backward": of_gradients_of_a_window,
    "read_source": of_a_source,
    "softmax_pair": of_a_softmax_pair,
    "softmax_pair_backward": of_gradients_of_a_softmax_pair,
    **dict.fromkeys(("to_length_one", "elu_to_length_one", "to_rms_one"), of_unit_rows),
    **dict.fromkeys(
        ("to_length_one_backward", "elu_to_length_one_backward", "to_rms_one_backward"), of_gradients_of_unit_rows
    ),
}


@st.composite
def calls(draw, operator: str):
    arguments = OPERATORS[operator](draw)
    return changed(draw, arguments), arguments
