"""Finds options of a site that contradict each other or have no effect at this site."""

from collections.abc import Iterator

from .feature_maps import FEATURE_MAPS, RandomFeatures
from .memories import MEMORIES, every_option
from .ops.call import CORRECTING
from .option import Contradiction
from .options import OPTIONS, SITES, SiteOptions


def contradiction(options: SiteOptions, site: str) -> Contradiction | None:
    """Returns the first option that has no effect at this site or contradicts another option; None if there is none."""
    of_fast_weights = (_of_the_map, _of_the_rule, _of_the_memory)
    for check in (_of_the_site, *(() if options.is_softmax else of_fast_weights)):
        if (wrong := next(check(options, site), None)) is not None:
            return wrong
    return None


def _of_the_site(options: SiteOptions, site: str) -> Iterator[Contradiction]:
    for option in OPTIONS.values():
        value = getattr(options, option.name)
        if value == option.default:
            continue
        if site not in option.sites:
            where = " and ".join(SITES[other] for other in option.sites)
            yield Contradiction((option.name,), f"this is an option of {where}", str(option.default).lower())


def _of_the_map(options: SiteOptions, site: str) -> Iterator[Contradiction]:
    phi, normalizer = FEATURE_MAPS[options.feature_map], options.chosen_normalizer
    if options.qk_norm != "none" and phi.homogeneity is not None:
        why = "this map is homogeneous, so the learned scale multiplies all features alike"
        yield Contradiction(("qk_norm", "feature_map"), why, "none, or another map")
    if options.source_window is not None:
        why = "fast weights keep no positions of the source"
        yield Contradiction(("source_window", "feature_map"), why, "left out, or softmax attention")
    if options.positions != "none":
        why = "rotary positions act on the scores of softmax attention, and this site has none"
        yield Contradiction(("positions", "feature_map"), why, "none, or softmax attention")
    if options.directions != "redrawn" and not issubclass(phi, RandomFeatures):
        yield Contradiction(("directions", "feature_map"), "this map has no random directions", "redrawn")
    if options.output_norm != "none" and options.normalizes[1]:
        why = "the norm cancels the denominator"
        yield Contradiction(("normalizer", "output_norm"), why, "auto, sum, l2 or none")
    if not phi.non_negative and options.normalizes[0]:
        why = f"features of this map can be negative, so they cannot be divided by their sum ({normalizer})"
        yield Contradiction(("normalizer", "feature_map"), why, "attention, l2 or none")


def _of_the_rule(options: SiteOptions, site: str) -> Iterator[Contradiction]:
    if options.beta_range != "0-1" and options.update_rule not in CORRECTING:
        why = "only a rule that removes the old value of a key can remove more than all of it"
        yield Contradiction(("beta_range", "update_rule"), why, f"0-1, or the rule {' or '.join(CORRECTING)}")
    if options.passes != "one" and options.update_rule == "sum":
        yield Contradiction(("passes", "update_rule"), "a sum has no order", "one, or another rule")


def _is_base(memory: type) -> bool:
    """Returns True if other memories inherit from this one."""
    return any(issubclass(other, memory) for other in MEMORIES if other is not memory)


def _of_the_memory(options: SiteOptions, site: str) -> Iterator[Contradiction]:
    chosen = [option for memory in MEMORIES if (option := memory.chosen_by(options))]
    if len(chosen) > 1:
        yield Contradiction((chosen[1], chosen[0]), "each of the two chooses a memory", "left out")
    read = {row.name for row in options.memory.options_read()}
    for row in every_option():
        if row.name not in read and getattr(options, row.name) != row.default:
            readers = [memory.__name__ for memory in MEMORIES if row in memory.options_read() and not _is_base(memory)]
            why = f"this is an option of the memory {' or '.join(readers)}"
            yield Contradiction((row.name,), why, str(row.default).lower())
    yield from options.memory.contradictions(options)
