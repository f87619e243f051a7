"""One process of a soak: threads and tasks that acquire and release locks at random until a command to pause or end.

    python worker.py URL CLIENT FIRST_TICKET JOURNAL SEED

Its commands are JSON lines (tests/support/processes.py). It appends each observation to the file JOURNAL at once, so a
kill loses none. The runner judges the observations (history.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import gc
import json
import logging
import os
import random
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import holdfast
from holdfast.runtimes.system import now
from holdfast_lab.verify.journal import Journal

PR_SET_PDEATHSIG = 1
THREADS, TASKS = 3, 3
HOT, COLD = 2, 6  # names that are contended, and names that are mostly free
OBSERVE_EVERY = 0.05  # seconds between two checks of a lease that is held for long
_EXPECTED = (holdfast.BackendError, holdfast.AcquireTimeout)


class Recorder(Journal):
    """The journal of this process."""

    def granted(self, lock: str, fence: int, at: float, *, limit: int | None, exclusive: bool, grouped: bool) -> int:
        """`grouped`: the lease is part of a group, whose losses are not reported for each lease."""
        ticket = self.new_ticket()
        group = ticket if grouped else None
        self.write("granted", at, ticket=ticket, lock=lock, fence=fence, limit=limit, exclusive=exclusive, group=group)
        return ticket

    def report_lost(self, lease: Any) -> None:
        """`on_lost` of every lock here."""
        self.write("lost", lock=lease.name, fence=lease.fence)


class Plan:
    """The random choices of one thread or task."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)  # noqa: S311  (not a secret)

    def name(self) -> str:
        if self._random.random() < 0.7:
            return f"hot-{self._random.randrange(HOT)}"
        return f"cold-{self._random.randrange(COLD)}"

    def names(self) -> list[str]:
        return sorted({self.name() for _ in range(3)})

    def ttl(self) -> float:
        return self._random.choice([2.0, 3.0, 5.0])

    def timeout(self) -> float:
        return self._random.choice([0.0, 0.2, 1.0, 3.0, 10.0])

    def hold(self) -> float:
        """Mostly short; sometimes long enough for several renewals."""
        return 2.5 if self.one_in(300) else self._random.choice([0.0, 0.0, 0.001, 0.002, 0.005, 0.02])

    def primitive(self, known: list[str]) -> str:
        return self._random.choice(known)

    def one_in(self, number: int) -> bool:
        return self._random.randrange(number) == 0

    def backoff(self) -> float:
        return self._random.uniform(0.0, 0.5)


def lock_of(client: Any, primitive: str, plan: Plan, recorder: Recorder) -> tuple[Any, int | None, bool]:
    """The lock, its limit, and whether it is exclusive."""
    options: dict[str, Any] = {"ttl": plan.ttl(), "timeout": plan.timeout(), "on_lost": recorder.report_lost}
    match primitive:
        case "read":
            return client.rwlock(f"rw-{plan.name()}", **options).read(), None, False
        case "write":
            return client.rwlock(f"rw-{plan.name()}", **options).write(), 1, True
        case "semaphore":
            return client.semaphore(f"semaphore-{plan.name()}", limit=2, **options), 2, False
        case _:
            return client.lock(plan.name(), **options), 1, True


def primitives(client: Any) -> list[str]:
    """The primitives of the store. Plain locks are most of the load."""
    known = ["lock"] * 4
    with contextlib.suppress(holdfast.Unsupported):
        client.rwlock("rw").read()
        known += ["read", "write"]
    with contextlib.suppress(holdfast.Unsupported):
        client.semaphore("semaphore", limit=2)
        known.append("semaphore")
    return known


class Load:
    """All threads and tasks of this process."""

    def __init__(self, url: str, recorder: Recorder, seed: str) -> None:
        self._url = url
        self._recorder = recorder
        self._seed = seed
        self._go = threading.Event()
        self._ended = False
        self._busy = 0
        self._mutex = threading.Lock()
        self.problems: list[str] = []
        self.client = holdfast.Client(url)
        self._primitives = primitives(self.client)
        self._threads = [threading.Thread(target=self._in_thread, args=(number,)) for number in range(THREADS)]
        self._threads.append(threading.Thread(target=lambda: asyncio.run(self._in_loop())))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def go(self) -> None:
        self._go.set()

    def pause(self) -> None:
        """Start no new turn. `is_idle` is true when all running turns have ended."""
        self._go.clear()

    @property
    def is_idle(self) -> bool:
        return self._busy == 0 and not self._go.is_set()

    def end(self) -> None:
        self._ended = True
        self._go.set()
        for thread in self._threads:
            thread.join()
        self.client.close()

    def show_stacks(self) -> None:
        """Write the stacks of all threads and tasks to stderr, for the report on a call that does not end."""
        faulthandler.dump_traceback()
        for task in asyncio.all_tasks(self._loop):
            sys.stderr.write(f"{task.get_name()}\n")
            coroutine: Any = task.get_coro()
            while (frame := getattr(coroutine, "cr_frame", None)) is not None:
                sys.stderr.write(f"  {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}\n")
                coroutine = coroutine.cr_await

    def sample(self) -> dict[str, int]:
        gc.collect()
        # Freed blocks stay in the heaps of malloc, one for each thread: 11 to 18 MiB here, at random. Only memory that
        # is in use counts, so return freed blocks to the kernel first.
        with contextlib.suppress(AttributeError):  # glibc only
            ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
        return {
            "memory": pages * os.sysconf("SC_PAGE_SIZE"),
            "objects": len(gc.get_objects()),
            "threads": len(os.listdir("/proc/self/task")),
            "descriptors": len(os.listdir("/proc/self/fd")),
        }

    # ── threads ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _in_thread(self, number: int) -> None:
        plan = Plan(f"{self._seed}-thread-{number}")
        while self._begin_turn():
            try:
                if plan.one_in(200):
                    self._fork(plan)
                elif plan.one_in(10):
                    self._use_several(plan)
                else:
                    self._use_one(self.client, plan)
            except _EXPECTED:
                time.sleep(plan.backoff() / 10)
            except Exception:
                self.problems.append(traceback.format_exc())
            finally:
                self._end_turn()

    def _use_one(self, client: holdfast.Client, plan: Plan) -> None:
        lock, limit, exclusive = lock_of(client, plan.primitive(self._primitives), plan, self._recorder)
        lease = lock.acquire()
        at = now()
        if lease is None:
            return
        ticket = self._recorder.granted(lease.name, lease.fence, at, limit=limit, exclusive=exclusive, grouped=False)
        end = at + plan.hold()
        while self._observe(lease, ticket) and now() < end:
            time.sleep(min(OBSERVE_EVERY, max(0.0, end - now())))
        self._release(lease, ticket, lease.release)

    def _use_several(self, plan: Plan) -> None:
        lease = self.client.lock_all(plan.names(), ttl=plan.ttl(), timeout=plan.timeout()).acquire()
        at = now()
        if lease is None:
            return
        tickets = [
            self._recorder.granted(name, fence, at, limit=1, exclusive=True, grouped=True)
            for name, fence in lease.fences.items()
        ]
        for ticket in tickets:
            self._observe(lease, ticket)
        self._release(lease, None, lease.release)

    def _fork(self, plan: Plan) -> None:
        """A child uses the inherited client for one turn. It dies without clean-up, as preforked servers do."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # a fork in a process with threads is intended here
            pid = os.fork()
        if pid == 0:
            status = 1
            try:
                child = self._recorder
                child.become_child()
                lock = self.client.lock(plan.name(), ttl=plan.ttl(), timeout=3.0)
                lease = lock.acquire()
                if lease is not None:
                    at = now()
                    self._observe(
                        lease, child.granted(lease.name, lease.fence, at, limit=1, exclusive=True, grouped=False)
                    )
                    lease.release()
                status = 0
            except _EXPECTED:
                status = 0
            except holdfast.LockLost:
                status = 0
            finally:
                os._exit(status)
        _, outcome = os.waitpid(pid, 0)
        if outcome != 0:
            self.problems.append(f"a forked child ended with {outcome}")

    # ── tasks ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _in_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with holdfast.AsyncClient(self._url) as client:
            await asyncio.gather(*(self._in_task(client, number) for number in range(TASKS)))

    async def _in_task(self, client: holdfast.AsyncClient, number: int) -> None:
        plan = Plan(f"{self._seed}-task-{number}")
        while True:
            while not self._go.is_set():
                await asyncio.sleep(0.05)
            if not self._begin_turn():
                return
            try:
                await self._use_one_in_task(client, plan)
            except TimeoutError:  # AcquireTimeout is one of them
                await asyncio.sleep(0)
            except holdfast.BackendError:
                await asyncio.sleep(plan.backoff() / 10)
            except Exception:
                self.problems.append(traceback.format_exc())
            finally:
                self._end_turn()

    async def _use_one_in_task(self, client: holdfast.AsyncClient, plan: Plan) -> None:
        lock, limit, exclusive = lock_of(client, plan.primitive(self._primitives), plan, self._recorder)
        if plan.one_in(5):  # cancelled at a random time
            async with asyncio.timeout(plan.backoff()):
                lease = await lock.acquire()
        else:
            lease = await lock.acquire()
        at = now()
        if lease is None:
            return
        ticket = self._recorder.granted(lease.name, lease.fence, at, limit=limit, exclusive=exclusive, grouped=False)
        end = at + plan.hold()
        while self._observe(lease, ticket) and now() < end:
            await asyncio.sleep(min(OBSERVE_EVERY, max(0.0, end - now())))
        before = now()
        was_held = lease.held
        try:
            await lease.release()
        except Exception as error:
            self._record_end(ticket, before, was_held=was_held, error=error)
        else:
            self._record_end(ticket, before, was_held=was_held, error=None)

    # ── recording ────────────────────────────────────────────────────────────────────────────────────────────────

    def _observe(self, lease: Any, ticket: int) -> bool:
        """Record that the lease is held; the time is taken before the check, so that a pause cannot extend it."""
        at = now()
        held: bool = lease.held
        if held:
            self._recorder.write("held", at, ticket=ticket, deadline=None)
        return held

    def _release(self, lease: Any, ticket: int | None, release: Callable[[], object]) -> None:
        before = now()
        was_held: bool = lease.held
        error: Exception | None = None
        try:
            release()
        except Exception as raised:
            error = raised
        if ticket is not None:
            self._record_end(ticket, before, was_held=was_held, error=error)
        elif error is not None and not isinstance(error, holdfast.LockLost | holdfast.BackendError):
            raise error

    def _record_end(self, ticket: int, before: float, *, was_held: bool, error: Exception | None) -> None:
        if was_held:
            self._recorder.write("held", before, ticket=ticket, deadline=None)
        if error is None:
            outcome = "released"
        elif isinstance(error, holdfast.LockLost):
            outcome = "lost"
        elif isinstance(error, holdfast.BackendError):
            outcome = "pending"
        else:
            raise error
        self._recorder.write("released", ticket=ticket, outcome=outcome)

    def _begin_turn(self) -> bool:
        while True:
            self._go.wait()
            with self._mutex:
                if self._ended:
                    return False
                if self._go.is_set():
                    self._busy += 1
                    return True

    def _end_turn(self) -> None:
        with self._mutex:
            self._busy -= 1


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    logging.getLogger("holdfast").setLevel(logging.CRITICAL)  # thousands of losses and retries are expected here
    url, client, number, journal, seed = sys.argv[1:]
    load = Load(url, Recorder(journal, client, int(number)), seed)
    load.start()
    _answer({"ready": True})
    for line in sys.stdin:
        command = json.loads(line)["do"]
        if command == "go":
            load.go()
        elif command == "pause":
            load.pause()
        elif command == "end":
            load.end()
        elif command == "stacks":
            load.show_stacks()
        facts: dict[str, Any] = {"idle": load.is_idle, "problems": load.problems[:3]}
        _answer(facts | load.sample() if command == "sample" else facts)
        if command == "end":
            return


def _answer(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
