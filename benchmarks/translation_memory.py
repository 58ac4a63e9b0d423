"""Measures the memory of `fwp translate` over the number of lines that it has translated.

  python -m benchmarks.translation_memory --lines 1000000 MODEL --beam 1 --max-len-a 0 --max-len-b 1

The command reads as many equal lines from a pipe. What follows MODEL are its flags. The memory is that of the process,
now and at its peak so far, each time that a tenth of the lines is translated.
"""

import argparse
import subprocess
import sys
import threading
from collections.abc import Iterator

from .program import Session, parser, resident_bytes

_PARTS = 10


def measure(command: list[str], text: str, lines: int) -> Iterator[dict[str, int]]:
    """Yields the memory in bytes, now and at its peak, after each tenth of the lines. Raises CalledProcessError."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:

        def write() -> None:
            with process.stdin as file:
                for _ in range(lines):
                    file.write(f"{text}\n".encode())

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        for number, _ in enumerate(process.stdout, 1):
            if number % max(1, lines // _PARTS) == 0 and process.poll() is None:
                now, peak = (resident_bytes(field, process.pid) for field in ("VmRSS", "VmHWM"))
                yield {"lines": number, "resident_bytes": now, "peak_bytes": peak}
        writer.join()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__, ("cpu",))
    options.add_argument("model", metavar="MODEL", help="as for fwp translate")
    options.add_argument("--lines", type=int, default=1_000_000, metavar="N", help="(default: 1000000)")
    options.add_argument("--text", default="A dog .", help='each line (default: "A dog .")')
    options.add_argument("flags", nargs=argparse.REMAINDER, metavar="FLAG", help="of fwp translate")
    args = options.parse_args(argv)
    session = Session("translation-memory", args)
    command = [sys.executable, "-m", "fwp_fairseq", "translate", args.model, "--cpu", *args.flags]
    for measured in measure(command, args.text, args.lines):
        memory = f"{measured['resident_bytes'] / 2**20:7.1f} MiB, peak {measured['peak_bytes'] / 2**20:7.1f} MiB"
        print(f"{measured['lines']:>9,} lines {memory}", flush=True)
        session.record(**measured)
    return session.status()


if __name__ == "__main__":
    sys.exit(main())
