"""The raw text of Multi30k English-German (29,000 training pairs, test_2016_flickr)."""

from collections.abc import Callable
from pathlib import Path

from fwp_fairseq.files import write_atomically

from . import sources

URL = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
SPLITS = {"train": 29000, "val": 1014, "test_2016_flickr": 1000}
LANGUAGES = ("en", "de")
SHA256 = {
    "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
    "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
}


PARTS = {"train": "train", "valid": "val", "test": "test_2016_flickr"}  # as fwp train and fairseq-preprocess name them


def write_parts(folder: Path, lines: dict[str, int] | None = None, say: Callable[[str], object] = print) -> None:
    """Writes train, valid and test of both languages into a folder, or so many first ``lines`` of each."""
    provide(folder / "multi30k", say)
    for part, name in PARTS.items():
        for language in LANGUAGES:
            text = (folder / "multi30k" / f"{name}.{language}").read_text(encoding="utf-8").splitlines(keepends=True)
            write_atomically(folder / f"{part}.{language}", "".join(text[: lines and lines[part]]))


def provide(destination: Path, say: Callable[[str], object] = print) -> None:
    """Writes every text of SHA256 into `destination`, but for those that are there already. Raises RecipeError."""
    for name, sha256 in SHA256.items():
        sources.provide(sources.Source("multi30k", f"{URL}/{name}.gz", sha256), destination / name, say)
