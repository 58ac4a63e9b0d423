"""Lists the architectures of this plugin, or every model flag of one architecture with its default.

fairseq-train --arch NAME --help cannot show these defaults, because it prints its help before it reads the
architecture.
"""

import argparse
import enum
import textwrap

from . import Parser
from .errors import UsageError
from .plugin import import_plugin


def add_arguments(parser) -> None:
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="show the flags of this architecture, which may be fairseq's"
    )


def enum_value(value):
    return value.value if isinstance(value, enum.Enum) else value


def _parser(arch: str) -> argparse.ArgumentParser:
    from fairseq.models import ARCH_MODEL_REGISTRY

    parser = Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    return parser


def actions(arch: str) -> list[argparse.Action]:
    """Returns the model's flags, as fairseq-train's parser defines them."""
    return _parser(arch)._actions


def options(arch: str, words: list[str]) -> dict:
    """Returns every model option of an architecture with the flags in ``words``, as fairseq-train computes it.

    Raises UsageError for a flag that the parser refuses.
    """
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY

    parser = _parser(arch)
    for action in parser._actions:
        action.required = False
        if action.default is None:
            action.default = argparse.SUPPRESS
    preset = parser.parse_args(words)
    preset.arch = arch
    ARCH_CONFIG_REGISTRY[arch](preset)
    dataclass = MODEL_DATACLASS_REGISTRY.get(ARCH_MODEL_NAME_REGISTRY[arch])
    declared = vars(dataclass()) if dataclass else {}
    return {name: enum_value(value) for name, value in {**declared, **vars(preset)}.items() if name != "arch"}


def defaults(arch: str) -> dict:
    """Returns the value of every model option when no flag is given."""
    return options(arch, [])


def flag_name(action: argparse.Action) -> str:
    return next(name for name in action.option_strings if name.startswith("--"))


def joined(values, separator: str = "/") -> str:
    """Returns the text of the value if all agree, else the texts of all, joined by ``separator``."""
    texts = [str(value) for value in values]
    return texts[0] if len(set(texts)) == 1 else separator.join(texts)


def attention_of(values: dict) -> dict[str, tuple]:
    """Returns the kind of attention of each site of a model with these options, and the width of its features or None.

    Raises ValueError for options that contradict each other.
    """
    from ..config import absent_sites, options_of_site
    from ..kinds import Attention
    from ..option import side_of
    from ..options import SITES

    options = argparse.Namespace(**{"fwp_feature_map": "softmax"} | values)  # Transformer-XL has no such option
    attention = {}
    for site in [site for site in SITES if site not in absent_sites(options)]:
        side = side_of(site)
        d_key = values[f"{side}_embed_dim"] // values[f"{side}_attention_heads"]
        config = options_of_site(options, site, d_key)
        attention[site] = Attention.of(config), None if config.is_softmax else config.width(d_key)
    return attention


def summary(arch: str) -> dict[str, str]:
    """Returns a row of the list of architectures.

    Values that differ between encoder and decoder, or between sites, are separated by slashes.
    """
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY

    values = defaults(arch)
    sides = [side for side in ("encoder", "decoder") if f"{side}_layers" in values]
    row = {"architecture": arch, "model": ARCH_MODEL_NAME_REGISTRY[arch]}
    for title, option in (
        ("layers", "layers"),
        ("embed", "embed_dim"),
        ("heads", "attention_heads"),
        ("ffn", "ffn_embed_dim"),
    ):
        row[title] = joined(values.get(f"{side}_{option}") for side in sides)
    kinds, widths = zip(*attention_of(values).values(), strict=True)
    return {**row, "d_dot": joined(width or "-" for width in widths), "attention": joined(kinds, " / ")}


def _own_architectures() -> list[str]:
    from fairseq.models import ARCH_MODEL_REGISTRY

    package = __name__.partition(".")[0]
    return [arch for arch, cls in ARCH_MODEL_REGISTRY.items() if cls.__module__.partition(".")[0] == package]


def _print_table(rows: list[dict[str, str]]) -> None:
    widths = {title: max(len(title), *(len(row[title]) for row in rows)) for title in rows[0]}
    for row in [{title: title for title in widths}, *rows]:
        print("  ".join(f"{row[title]:<{width}}" for title, width in widths.items()).rstrip())


def _print_flags(arch: str) -> None:
    values = defaults(arch)
    for action in actions(arch):
        choices = f"  {{{','.join(str(enum_value(choice)) for choice in action.choices)}}}" if action.choices else ""
        print(f"{flag_name(action)}  [{values.get(action.dest)}]{choices}")
        if action.help:
            print(textwrap.fill(action.help, 100, initial_indent="    ", subsequent_indent="    "))


def run(args) -> int:
    import_plugin()
    from fairseq.models import ARCH_MODEL_REGISTRY

    if args.name is None:
        _print_table([summary(arch) for arch in _own_architectures()])
        return 0
    if args.name not in ARCH_MODEL_REGISTRY:
        raise UsageError(f"unknown architecture {args.name!r}, expected one of {', '.join(_own_architectures())}")
    _print_flags(args.name)
    return 0
