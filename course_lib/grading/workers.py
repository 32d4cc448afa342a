"""Many jobs at once: processes on this machine, which share one sandbox, or a dask cluster. Jobs go in as bytes, and
results come out as bytes, in whatever order they are done."""

import json
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from course_lib.errors import CourseError
from course_lib.grading import job as jobs

#: Beyond its own budget, before a worker is taken for dead: two runs, their restarts, the referee's own work.
_PATIENCE_SECONDS = 120.0
#: In one process: while the referee looks through a submission's room, its instruments look nowhere else.
_one_at_a_time = threading.Lock()


class Workers(Protocol):
    def grade(
        self, waiting: Mapping[str, bytes], meanwhile: Callable[[], None]
    ) -> Iterator[tuple[str, bytes | None]]:
        """Key and result of each job as it ends; None where a worker was lost over it.

        Args:
            meanwhile: called once the first jobs are on their way; it need not wait for their results.
        """


class Here:
    """Processes of this machine, forked when torch is imported and the sandbox stands."""

    def __init__(self, count: int, budget_seconds: float, first: Sequence[Callable[[], None]] = ()) -> None:
        """
        Args:
            first: called one after the other before workers are forked, if there is anything to do.
        """
        self.count, self.patience, self.first = count, 2 * budget_seconds + _PATIENCE_SECONDS, first

    def grade(
        self, waiting: Mapping[str, bytes], meanwhile: Callable[[], None]
    ) -> Iterator[tuple[str, bytes | None]]:
        todo = list(waiting.items())[::-1]
        for prepare in self.first if todo else ():
            prepare()
        hands = [_Hand() for _ in range(min(self.count, len(todo)))]
        busy: dict[Connection, tuple[_Hand, str, float]] = {}
        try:
            for hand in hands:
                key, job = todo.pop()
                busy[hand.give(job)] = (hand, key, time.monotonic())
            meanwhile()
            while busy:
                for ready in wait(list(busy), timeout=1.0):
                    assert isinstance(ready, Connection)
                    hand, key, _ = busy.pop(ready)
                    try:
                        yield key, ready.recv_bytes()
                    except (EOFError, OSError):
                        yield key, None
                        hand.stop()
                        hand = _replace(hands, hand)
                    if todo:
                        key, job = todo.pop()
                        busy[hand.give(job)] = (hand, key, time.monotonic())
                for hand, _key, since in busy.values():
                    if time.monotonic() - since > self.patience:
                        hand.process.kill()  # then its line ends, and it is replaced above
        finally:
            for hand in hands:
                hand.stop()


class _Hand:
    """One worker process."""

    def __init__(self) -> None:
        fork = multiprocessing.get_context("fork")
        self.line, theirs = fork.Pipe()
        self.process = fork.Process(target=_work, args=(theirs, self.line), daemon=True)
        self.process.start()
        theirs.close()

    def give(self, job: bytes) -> Connection:
        with suppress(OSError):  # where it died, reading its answer will say so
            self.line.send_bytes(job)
        return self.line

    def stop(self) -> None:
        self.line.close()
        self.process.kill()
        self.process.join()


def _replace(hands: list[_Hand], lost: _Hand) -> _Hand:
    hands[hands.index(lost)] = _Hand()
    return next(hand for hand in reversed(hands) if hand.process.exitcode is None)


def _work(line: Connection, others: Connection) -> None:
    import torch

    others.close()
    torch.set_num_threads(1)
    while True:
        try:
            job = line.recv_bytes()
        except EOFError:
            return
        line.send_bytes(grade_or_say(job))


def grade_or_say(job: bytes) -> bytes:
    """A result for every job: where the grader itself fails, one that says so."""
    try:
        with _one_at_a_time:
            return jobs.grade(job)
    except Exception as error:
        about = json.loads(job.partition(b"\n")[0])
        assignment = jobs.assignment_of(about["assignment"], json.dumps(about["own"], sort_keys=True))
        reason = f"the grader itself failed ({type(error).__name__}: {str(error)[:200]})"
        return json.dumps(jobs.ungraded(assignment, "failed", reason).to_dict()).encode()


class Dask:
    """The workers of a dask cluster, each with the course installed; no shared disk is needed."""

    def __init__(self, address: str) -> None:
        try:
            from distributed import Client
        except ModuleNotFoundError as error:
            raise CourseError("--dask needs dask.distributed, which is not installed here: pip install distributed"
                              ) from error  # fmt: skip
        try:
            self.client: Any = Client(address, timeout="20s")
        except (OSError, ValueError, TimeoutError) as error:
            raise CourseError(f"--dask: no scheduler answers at {address}; start one with: dask scheduler") from error

    def grade(
        self, waiting: Mapping[str, bytes], meanwhile: Callable[[], None]
    ) -> Iterator[tuple[str, bytes | None]]:
        from distributed import as_completed

        keys = {self.client.submit(grade_or_say, job, pure=False): key for key, job in waiting.items()}
        meanwhile()
        for future in as_completed(keys):
            yield keys[future], future.result() if future.status == "finished" else None
