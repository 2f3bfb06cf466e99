"""A process that has everything imported and forks daemons and workers, so that none of them costs an interpreter's start.

Nothing that cannot be forked has happened in it: no thread, no gRPC call. Commands come as JSON lines on stdin, each is
answered with one on stdout: {"fork": "daemon" or "worker", "log": path, "crash_at": point, "with": argument} with the pid,
{"wait": pid} with what ended the process (a signal's number, negative, or its exit code).
"""

import json
import os
import sys
from typing import Any

from hybridkv.service import in_thread, serving
from hybridkv.service.config import load_config
from hybridkv.tiers import points
from tests.service.crash import worker

assert in_thread, "imports what a daemon needs"


def serve(values: dict[str, object]) -> None:
    """What `hybridkv serve` does."""
    serving.run(load_config(overrides=values, env={}))


def _child(command: dict[str, Any]) -> None:
    os.setsid()
    log = os.open(command["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number, target in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
        os.dup2(number, target)
    points.crash_as_told({points.ENV_CRASH_AT: command["crash_at"]})
    {"daemon": serve, "worker": worker.work}[command["fork"]](command["with"])


def _fork(command: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _child(command)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Until stdin ends."""
    for line in sys.stdin:
        command = json.loads(line)
        answer = os.waitstatus_to_exitcode(os.waitpid(command["wait"], 0)[1]) if "wait" in command else _fork(command)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
