"""Runs fairseq's command-line tools in processes of their own, without paying the seconds of imports each time.

Imports torch and fairseq once, neither the tools nor the plugin, then forks for every process: the child is a fresh one
in which nothing has happened yet but those imports (torch._dynamo: every optimizer imports it). Each line
of standard input is a JSON list of processes to run at the same time; the list of their exit statuses is answered on
standard output.
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
    gc.freeze()  # else every child goes through, and copies, all that stands here: two thirds of a short tool's time
    logging.root.handlers.clear()  # fairseq logs while it is imported; each tool sets up its own logging before that
    sys.path.pop(0)  # this folder, which the tools do not see either
    for line in sys.stdin:
        children = []
        for request in json.loads(line):
            children.append(os.fork())
            if children[-1] == 0:
                _run(request)
                return  # the child ends as any script does
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]), flush=True)


main()
