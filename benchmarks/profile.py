"""Divides the time of a model on the CPU by the kinds of its operators."""

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile

# An operator belongs to the first kind of which one of these parts occurs in its name, else to "rest".
_KINDS = {
    "attention": ("fwp", "bmm", "scaled_dot_product", "flash_attention", "::_softmax"),
    "moving caches": ("index_select", "::cat", "::copy_", "::clone"),
    "linear layers": ("addmm", "::mm", "mkldnn", "::linear"),
    "optimizer": ("_foreach", "_fused_adam", "addcdiv", "addcmul", "::sqrt"),
    "output and search": ("log_softmax", "topk", "::gather", "::sum", "::embedding"),
}


# Under autograd, the time of our forward is that of the function which torch generates around it.
_COUNTED = ("aten::", "fwp::", "mkldnn", "GeneratedBackwardFor_fwp")


def kind_of(event: str) -> str | None:
    """The kind of an operator; None if the event is not an operator."""
    if not event.startswith(_COUNTED):
        return None
    return next((kind for kind, parts in _KINDS.items() if any(part in event for part in parts)), "rest")


def shares(run: Callable[[], object]) -> dict[str, float]:
    """The share of each kind in the time of the operators of ``run()``; the time of Python between them is left out."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        run()
    spent = dict.fromkeys([*_KINDS, "rest"], 0.0)
    for event in found.key_averages():
        kind = kind_of(event.key)
        if kind is not None:
            spent[kind] += event.self_cpu_time_total
    total = sum(spent.values())
    return {kind: time / total for kind, time in spent.items()}
