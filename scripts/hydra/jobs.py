"""Prints the jobs of a Hydra multirun of scripts/hydra/CONFIG.yaml, without starting them.

  python scripts/hydra/jobs.py CONFIG [OVERRIDE ...]          for example CONFIG = wmt14_bleu_vs_d_dot

With the same overrides, `fairseq-hydra-train -m --config-dir scripts/hydra --config-name CONFIG` runs exactly these
jobs.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def jobs(name: str, overrides: list[str]) -> Iterator[tuple[list[str], object]]:
    """Yields the overrides of each job and the configuration that fairseq-hydra-train composes from them."""
    from fairseq.dataclass.initialize import hydra_init
    from hydra import compose, initialize_config_dir
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf, open_dict

    GlobalHydra.instance().clear()
    hydra_init(name)
    # fairseq-hydra-train sets no version_base, and Hydra then behaves as this version.
    with initialize_config_dir(str(FOLDER), version_base="1.1"):
        plain = [override for override in overrides if override.startswith("hydra")]
        params = compose(name, plain, return_hydra_config=True).hydra.sweeper.params or {}
        given = {override.partition("=")[0] for override in overrides}
        swept = [f"{key}={value}" for key, value in params.items() if key not in given]
        parsed = OverridesParser.create().parse_overrides([*swept, *overrides])
        for batch in BasicSweeper.split_arguments(parsed, None):
            for job in batch:
                cfg = compose(name, list(job), return_hydra_config=True)
                with open_dict(cfg):
                    cfg.hydra.runtime.cwd = str(Path.cwd())
                    HydraConfig.instance().set_config(cfg)
                    del cfg["hydra"]
                yield list(job), OmegaConf.create(OmegaConf.to_container(cfg, resolve=True))


def main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if argv else 2
    name, *overrides = argv
    if not (FOLDER / f"{name}.yaml").is_file():
        found = ", ".join(path.stem for path in sorted(FOLDER.glob("*.yaml")))
        print(f"error: {name}: expected one of {found}", file=sys.stderr)
        return 2
    command = ["fairseq-hydra-train", "-m", "--config-dir", "scripts/hydra", "--config-name", name, *overrides]
    print(f"# {shlex.join(command)}")
    for number, (job, cfg) in enumerate(jobs(name, overrides)):
        words = {key: value for key, value in cfg.model.items() if key.startswith("fwp_")}
        attention = " ".join(f"{key}={value}" for key, value in words.items())
        print(f"#{number} {shlex.join(job)}\n   {attention}\n   {cfg.checkpoint.save_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
