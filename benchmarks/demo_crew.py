"""The demo's worker processes, as the demo sees them: who is free, who does what, who was killed."""

import json
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hybridkv.benchmarks.daemon_process import clean_environment
from hybridkv.benchmarks.workload import Request
from hybridkv.tiers.errors import UnavailableError

ANSWER_S = 120.0
END_S = 30.0


class WorkerProcess:
    """One worker: a fresh interpreter, commands on its stdin, answers on its stdout, complaints in `log`."""

    def __init__(self, address: str, trace: Path, limit: int, log: Path) -> None:
        self._log = log
        command = [sys.executable, "-m", "hybridkv.benchmarks.demo_worker", address, str(trace), str(limit)]
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=clean_environment()
            )
        assert self._process.stdin is not None, "asked for above"
        assert self._process.stdout is not None, "asked for above"
        self._stdin, self.stdout = self._process.stdin, self._process.stdout

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, do: str, argument: Any) -> None:
        """Give a command. Raises UnavailableError when the process is gone."""
        line = json.dumps({"do": do, "with": argument}) + "\n"
        try:
            self._stdin.write(line.encode())
            self._stdin.flush()
        except BrokenPipeError as error:
            raise self._gone() from error

    def answer(self) -> Any:
        """The answer to the command given before; waits for it. Raises UnavailableError when the process is gone."""
        line = self.stdout.readline()
        if not line:
            raise self._gone()
        return json.loads(line)

    def ask(self, do: str, argument: Any) -> Any:
        self.tell(do, argument)
        return self.answer()

    def kill(self) -> None:
        """SIGKILL: it gets to do nothing more. May be called again."""
        self._process.kill()
        self._close()

    def end(self) -> None:
        """Let it finish and detach."""
        self._stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._close()

    def _close(self) -> None:
        self._process.wait()
        for pipe in (self._stdin, self.stdout):
            try:
                pipe.close()
            except BrokenPipeError:  # what was still to be written has no reader any more
                continue

    def _gone(self) -> UnavailableError:
        code = self._process.wait(END_S)
        return UnavailableError(f"a worker ended with code {code}: {self._log.read_text(errors='replace')[-2000:]}")


class Crew:
    """Worker processes that share a list of requests. A context manager that leaves no process behind."""

    def __init__(self, count: int, address: str, trace: Path, limit: int, logs: Path) -> None:
        self.workers = [WorkerProcess(address, trace, limit, logs / f"worker{i}.log") for i in range(count)]

    def serve(self, requests: Sequence[Request], on_answer: Callable[[dict[str, Any]], None]) -> None:
        """Hand out `requests`; `on_answer` gets each tally as it comes.

        A request goes to whoever is free, in the order of the trace, except that a session's requests wait for one
        another: an agent sends its next prompt after the answer to the one before, whose blocks it starts with.
        """
        queue = SessionQueue(requests)
        free = list(self.workers)
        with selectors.DefaultSelector() as waiting:
            while queue or len(free) < len(self.workers):
                while free and (request := queue.take()) is not None:
                    worker = free.pop()
                    worker.tell("serve", request.index)
                    waiting.register(worker.stdout, selectors.EVENT_READ, (worker, request))
                for worker, request in _ready(waiting):
                    waiting.unregister(worker.stdout)
                    on_answer(worker.answer())
                    queue.done(request)
                    free.append(worker)

    def kill(self, worker: WorkerProcess) -> None:
        """One worker fewer, at once."""
        self.workers.remove(worker)
        worker.kill()

    def end(self) -> None:
        """All detach."""
        while self.workers:
            self.workers.pop().end()

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_: object) -> None:
        while self.workers:
            self.workers.pop().kill()


class SessionQueue:
    """Requests in order, of each session one at a time."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._waiting = deque(requests)
        self._active: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def take(self) -> Request | None:
        """The first request whose session has none under way; None while there is none."""
        for at, request in enumerate(self._waiting):
            if request.session not in self._active:
                del self._waiting[at]
                if request.session is not None:
                    self._active.add(request.session)
                return request
        return None

    def done(self, request: Request) -> None:
        if request.session is not None:
            self._active.discard(request.session)


def _ready(waiting: selectors.BaseSelector) -> list[tuple[WorkerProcess, Request]]:
    events = waiting.select(ANSWER_S)
    if not events:
        raise UnavailableError(f"no worker answered within {ANSWER_S:g} s")
    return [key.data for key, _ in events]
