"""Runs fairseq's command-line tools in separate processes, without the seconds of imports that each would need.

The server imports torch and fairseq once, but neither the tools nor the plugin, and then forks for every process. A
child is like a fresh process with only these imports (torch._dynamo is one, because every optimizer imports it). Each
line of standard input is a JSON list of processes to run at the same time; the server answers on standard output with
the list of their exit statuses.
"""

import gc
import importlib
import json
import logging
import os
import sys


def _run(request: dict) -> None:
    os.chdir(request["cwd"])
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC if number else os.O_RDONLY
        os.dup2(os.open(request[name], flags), number)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.argv = [request["tool"], *request["arguments"]]
    exec(request["prelude"], {})
    if request["tool"] != "python":
        importlib.import_module(f"fairseq_cli.{request['tool']}").cli_main()


def main() -> None:
    for library in ("hydra", "sacrebleu", "sentencepiece", "torch._dynamo", "fairseq.options", "fairseq.trainer"):
        importlib.import_module(library)
    gc.collect()
    # Otherwise the garbage collector of every child would visit, and so copy, all objects here, which takes two thirds
    # of the time of a short tool.
    gc.freeze()
    logging.root.handlers.clear()  # fairseq logs while it is imported; each tool sets up its own logging before that
    sys.path.pop(0)  # removes this folder, which the tools do not see when they run by themselves
    for line in sys.stdin:
        children = []
        for request in json.loads(line):
            children.append(os.fork())
            if children[-1] == 0:
                _run(request)
                return  # the child ends as any script does
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]), flush=True)


main()
