"""Shards of a run of tests, for processes side by side: ``FWP_SHARD=0/6`` to ``5/6`` are six disjoint parts of what is
chosen."""

import os
import re
import zlib
from typing import NamedTuple


class Shard(NamedTuple):
    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Raises ValueError unless there are as many shards as it says."""
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        if found is None or int(found[1]) >= int(found[2]):
            raise ValueError(f"FWP_SHARD is {text!r}; expected one of 0/6, 1/6, ... 5/6, or of another count")
        return cls(int(found[1]), int(found[2]))

    def holds(self, name: str) -> bool:
        """By the name alone: processes need not agree on an order, and neighbours, which cost alike, are spread."""
        return zlib.crc32(name.encode()) % self.count == self.number


def here() -> Shard:
    return Shard.parse(os.environ.get("FWP_SHARD", "0/1"))
