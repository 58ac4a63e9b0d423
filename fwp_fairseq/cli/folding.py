"""Multiplies the matrices of learned maps into a checkpoint's projections of queries and keys."""

from typing import TYPE_CHECKING

from torch import Tensor

from .errors import CommandError

if TYPE_CHECKING:
    from ..modules import SiteAttention


def fold_maps(
    parameters: dict[str, Tensor], attentions: "dict[str, SiteAttention]"
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Returns the parameters of a model that computes the same without learned matrices, and its maps by site.

    A site is left as it is if its map is not learned, if something comes between a projection and the matrix, or if
    the product has another width than the projection, because that is no model that flags can describe.

    Args:
        parameters: those of the checkpoint.
        attentions: a module for every attention with fast weights, by the prefix of its parameters.

    Raises CommandError if no site can be folded.
    """
    found, maps = dict(parameters), {}
    for prefix, attention in attentions.items():
        rest = attention.feature_map.rest()
        if attention.memory.foldable is None or attention.qk_norm is not None or rest.d_key != attention.head_dim:
            continue
        own = {name: parameters[prefix + name] for name in attention.state_dict()}
        attention.to(own["q_proj.weight"].dtype).load_state_dict(own)
        maps_of_site = attention.memory.foldable
        attention.fold_maps()
        for side, feature_map in zip("qk", maps_of_site, strict=True):
            projection = getattr(attention, f"{side}_proj")
            bias = projection.bias.detach().view(attention.num_heads, 1, -1)
            found[f"{prefix}{side}_proj.weight"] = projection.weight.detach()
            found[f"{prefix}{side}_proj.bias"] = feature_map.biased(bias).detach().flatten()
        for name in own:
            if name.startswith("memory.features."):
                del found[prefix + name]
        maps[attention.site] = rest.name
    if not maps:
        raise CommandError(
            "--fold-maps: no site has a matrix to fold, expected the feature map hedgehog with d_dot = 2 d_key or t2r "
            "with d_dot = d_key, without --fwp-qk-norm, a window or a fast net"
        )
    return found, maps
