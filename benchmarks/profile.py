"""Where the time of a model on the CPU goes, by what its operators do."""

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile

# The first whose part of a name occurs in the operator's; what is left is "rest".
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
    """None for what is no operator."""
    if not event.startswith(_COUNTED):
        return None
    return next((kind for kind, parts in _KINDS.items() if any(part in event for part in parts)), "rest")


def shares(run: Callable[[], object]) -> dict[str, float]:
    """Share of each kind in the time that the operators of ``run()`` take themselves; Python between them has none."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        run()
    spent = dict.fromkeys([*_KINDS, "rest"], 0.0)
    for event in found.key_averages():
        kind = kind_of(event.key)
        if kind is not None:
            spent[kind] += event.self_cpu_time_total
    total = sum(spent.values())
    return {kind: time / total for kind, time in spent.items()}
