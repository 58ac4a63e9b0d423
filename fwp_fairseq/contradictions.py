"""Finds options of a site that contradict each other or have no meaning there."""

from collections.abc import Iterator
from typing import NamedTuple

from .feature_maps import FEATURE_MAPS, RandomFeatures
from .ops.call import CORRECTING
from .options import OPTIONS, SITES, SiteOptions


class Contradiction(NamedTuple):
    """An option that contradicts another one, or the site.

    Attributes:
        options: its name, and that of the option that it contradicts, if there is one.
        why: the reason.
        expected: what the first option can be instead.
    """

    options: tuple[str, ...]
    why: str
    expected: str


def contradiction(options: SiteOptions, site: str) -> Contradiction | None:
    """Returns the first option that would have no effect at this site, or that cannot work with the other options."""
    of_fast_weights = (_of_the_map, _of_the_rule, _of_the_window, _of_the_fast_net)
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
        if option.values is None and value < 1:
            yield Contradiction((option.name,), "there is none of that size", "1 or more")


def _of_the_map(options: SiteOptions, site: str) -> Iterator[Contradiction]:
    phi, normalizer = FEATURE_MAPS[options.feature_map], options.chosen_normalizer
    if options.qk_norm != "none" and phi.homogeneity is not None:
        why = "this map is homogeneous, so the learned scale multiplies all features alike"
        yield Contradiction(("qk_norm", "feature_map"), why, "none, or another map")
    if options.source_window is not None:
        why = "fast weights keep no positions of the source"
        yield Contradiction(("source_window", "feature_map"), why, "left out, or softmax attention")
    if options.positions != "none":
        why = "only the scores of softmax attention can be turned by positions"
        yield Contradiction(("positions", "feature_map"), why, "none, or softmax attention")
    if options.directions != "redrawn" and not issubclass(phi, RandomFeatures):
        yield Contradiction(("directions", "feature_map"), "this map has no random directions", "redrawn")
    if options.output_norm != "none" and options.normalizes[1]:
        why = "the norm undoes what the denominator does"
        yield Contradiction(("normalizer", "output_norm"), why, "auto, sum, l2 or none")
    if not phi.non_negative and options.normalizes[0]:
        why = f"features of this map can be negative, so they cannot be divided by their sum ({normalizer})"
        yield Contradiction(("normalizer", "feature_map"), why, "attention, l2 or none")


def _of_the_rule(options: SiteOptions, site: str) -> Iterator[Contradiction]:
    if options.beta_range != "0-1" and options.update_rule not in CORRECTING:
        why = "only a rule that takes away what the key held can take away more than that"
        yield Contradiction(("beta_range", "update_rule"), why, f"0-1, or the rule {' or '.join(CORRECTING)}")
    if options.passes != "one" and options.update_rule == "sum":
        yield Contradiction(("passes", "update_rule"), "a sum has no order", "one, or another rule")


def _of_the_window(options: SiteOptions, site: str) -> Iterator[Contradiction]:
    if options.window is None:
        return
    if options.has_fast_net:
        yield Contradiction(("window", _net_option(options)), "this net is read at every position", "left out")
    if options.update_rule != "sum":
        why = "what is read in the window and before it is added up"
        yield Contradiction(("window", "update_rule"), why, "left out, or the rule sum")
    if options.chosen_normalizer != "attention":
        why = "what is read in the window and before it is divided by the sum of both weights"
        if options.normalizer == "auto":  # an output norm has chosen another
            yield Contradiction(("window", "output_norm"), why, "left out, or no output norm")
        yield Contradiction(("window", "normalizer"), why, "left out, or the normaliser auto or attention")


def _of_the_fast_net(options: SiteOptions, site: str) -> Iterator[Contradiction]:
    if options.fast_net_depth is not None and options.fast_net != "mlp":
        yield Contradiction(("fast_net_depth", "fast_net"), "only the net mlp has blocks", "left out, or the net mlp")
    if not options.has_fast_net:
        return
    option = _net_option(options)
    rule = "sum" if options.fast_net == "fwp1991" else "delta"
    if options.update_rule != rule:
        expected = f"{rule}, or {option.replace('_', '-')} {OPTIONS[option].default}"
        yield Contradiction(
            ("update_rule", option), f"all matrices of this net are written by the {rule} rule", expected
        )
    if options.normalizes[1]:
        why = f"these nets accumulate no keys, which {options.chosen_normalizer} divides by"
        yield Contradiction(("normalizer", option), why, "auto, sum, l2 or none")
    if options.beta_range != "0-1":
        yield Contradiction(("beta_range", option), "the strengths of these nets lie in [0, 1]", "0-1")


def _net_option(options: SiteOptions) -> str:
    """Returns the option that chooses a fast net or feedback."""
    return "fast_net" if options.fast_net != "linear" else "recurrent"
