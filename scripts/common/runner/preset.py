"""One scale of an experiment."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A scale by name, and its rows.

    - `distributed`: whether one run can use several GPUs.
    - `on_a_cpu`: how long a run would take on a CPU, if this is so long that it must be asked for.
    """

    name: str
    rows: tuple
    distributed: bool = False
    on_a_cpu: str | None = None
