"""The ``fwp`` command. Each subcommand is one file with ``run(args) -> int`` and, for flags, ``add_arguments``."""

import argparse
import importlib
import os
import signal
import sys
from pathlib import Path

from .. import __version__
from ..files import named, reason
from ..text import printable
from .errors import CommandError, UsageError, path_of

# Only the module of the chosen subcommand is imported, so that ``fwp d-dot``, for example, does not need fairseq.
COMMANDS = {
    "d-dot": "convert d_dot to the parameter of a feature map (nu, m or n), and back",
    "info": "print what is installed and built, and which backends are used",
    "check": "compare the compiled kernels with PyTorch",
    "archs": "list the architectures, or all model flags of one",
    "path": "print the folder to pass as --user-dir",
    "average": "average the parameters of checkpoints",
    "convert": "change the attention of a checkpoint, which may be fairseq's own",
    "train": "train on your own texts, translate and score",
    "translate": "translate lines or a document with a trained model",
    "bleu": "score translations with sacreBLEU",
    "ppl": "compute the perplexity per word of a model of subwords or characters",
    "table": "make a table or a plot of your own trainings",
}


# Modules that some commands need and that are not installed with the package, each with the name for pip install.
_FURTHER = {name: name for name in ("sentencepiece", "sacremoses", "icu4py")} | {"sacrebleu": "'sacrebleu>=2.3'"}


class Parser(argparse.ArgumentParser):
    def __init__(self, **options):
        super().__init__(**options)
        self.register("type", Path, path_of)

    def error(self, message):
        raise UsageError(message)


def _overview() -> str:
    rows = "\n".join(f"  {name:<9}  {summary}" for name, summary in COMMANDS.items())
    return f"usage: fwp COMMAND ...\n\n{rows}\n\n`fwp COMMAND --help` describes a command."


def _run(name: str, arguments: list[str]) -> int:
    if name in ("-h", "--help"):
        print(_overview())
        return 0
    if name == "--version":
        print(__version__)
        return 0
    if name not in COMMANDS:
        raise UsageError(f"unknown command {name!r}, expected one of {', '.join(COMMANDS)}")
    module = importlib.import_module(f".{name.replace('-', '_')}", __name__)
    layout = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog=f"fwp {name}", description=module.__doc__, formatter_class=layout)
    getattr(module, "add_arguments", lambda parser: None)(parser)
    try:
        return module.run(parser.parse_args(arguments))
    except SystemExit as stop:  # --help
        return stop.code or 0


def _stop(*_) -> None:
    raise KeyboardInterrupt  # sending SIGINT would not do: in a shell, processes in the background ignore it


def main(argv: list[str] | None = None) -> int:
    """Runs one subcommand; returns 0, 1 if the operation failed, 2 if the call makes no sense, 130 if interrupted."""
    name, *arguments = (sys.argv[1:] if argv is None else list(argv)) or ["--help"]
    if argv is None:  # this is the process of the command, not a call from another program
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _stop)
        # A shell or a service may have closed a stream. Then nothing is read, or no message is printed; but without
        # standard output the result would be lost, so this is an error.
        sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
        sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
        if sys.stdout is None:
            print("fwp: error: standard output is closed", file=sys.stderr)
            return 1
    try:
        with named("standard output"):  # errors about other files already have a name
            status = _run(name, arguments)
            sys.stdout.flush()
        return status
    except BrokenPipeError:  # as in `fwp archs | head`; no error, and Python must not report it again while exiting
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:  # also of another signal, so that unfinished files are removed
        print("fwp: stopped", file=sys.stderr)
        return 130
    except (UsageError, CommandError, OSError, ModuleNotFoundError) as error:
        advice = ""
        if isinstance(error, ModuleNotFoundError):
            if error.name not in _FURTHER:
                raise
            advice = f"; pip install {_FURTHER[error.name]}"
        command = f"fwp {name}" if name in COMMANDS else "fwp"
        print(f"{command}: error: {printable(' '.join(reason(error).split()))}{advice}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
