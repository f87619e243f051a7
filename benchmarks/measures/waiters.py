"""Many clients wait for one lock; then it is released, and each of them acquires it in turn.

This measures the cost of idle waiting, and whether the cost of a hand-over depends on the number of waiters.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from multiprocessing.connection import Connection
from typing import Literal, NamedTuple

from benchmarks import figures
from benchmarks.contender import Arena, AsyncLocks, Contender, Locks
from benchmarks.figures import Turn
from benchmarks.measure import Column, Effort, Figures, Measure, Panel, Setting, now
from benchmarks.processes import ProcessGroup, answer, cpu_of
from benchmarks.servers import Stats

PROCESSES = 2  # processes that share the waiters of a lock between processes, as threads or tasks
PROCESSES_MAX = 64  # if every waiter has to be a process
CONNECTIONS_MAX = 200  # if every waiter has a connection; the servers allow a few more
# On MySQL waiters poll, and the claim about the cost begins at 4 waiters. On stores that commit, the claim about a
# hand-over is for up to 200 waiters; more would take too long.
COMMITTED = (Arena.ETCD, Arena.ZOOKEEPER, Arena.NATS)
ONLY_FOR = {4: (Arena.MYSQL,), 200: COMMITTED}
SLOW, SLOW_MAX = (Arena.MYSQL, *COMMITTED), 200
SETTLE_EACH = 0.02  # seconds per waiter until it waits there, at most: a commit, a read, and a watch
CALM = 4  # waiters connect first, which takes time, and few commands need a longer measurement
NAME = "queued"


class Report(NamedTuple):
    """The report of the waiters of one process."""

    turns: list[Turn]
    cpu: float  # CPU seconds of the process so far


class _Script(NamedTuple):
    """The parameters of a case."""

    waiters: int
    passes: int  # number of passes through all waiters; more than one if a pass is short
    settle: float  # seconds until all of them wait
    calm: float  # additional seconds before idle waiting is measured
    idle: float  # seconds of that measurement, in the first pass


def run(contender: Contender, numbers: Mapping[str, float], location: str) -> Figures:
    """Return the figures per hand-over, the median of all passes; see the columns below."""
    calm = CALM if contender.arena is Arena.MYSQL else 1
    waiters = int(numbers["waiters"])
    script = _Script(
        waiters=waiters,
        passes=int(numbers["passes"]),
        settle=numbers["settle"] + (SETTLE_EACH * waiters if contender.arena in COMMITTED else 0.0),
        calm=numbers["settle"] * (calm - 1),
        idle=numbers["idle"] * calm,
    )
    if contender.arena.has_processes:
        return _between_processes(contender, location, script)
    if contender.tasks is not None:
        return asyncio.run(_in_one_loop(contender.tasks(location), script))
    assert contender.threads is not None
    return _in_one_process(contender.threads(location), script)


# ── the holder ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _in_one_process(locks: Locks, script: _Script) -> Figures:
    ledger = _Ledger(time.process_time)
    _warm_up(locks)
    for number in range(script.passes):
        with locks.lock(NAME):
            waiters = _ThreadWaiters(locks, script.waiters)
            time.sleep(script.settle + _any_phase())
            if number == 0:
                time.sleep(script.calm)
                ledger.idle_begins()
                time.sleep(script.idle)
                ledger.idle_ends()
            ledger.release_begins()
        report = waiters.wait_for_turns()
        ledger.add([report], report.cpu)
    locks.close()
    return ledger.figures()


async def _in_one_loop(locks: AsyncLocks, script: _Script) -> Figures:
    ledger = _Ledger(time.process_time)
    await _warm_up_awaited(locks)
    for number in range(script.passes):
        async with locks.lock(NAME):
            waiters = await _TaskWaiters.start(locks, script.waiters)
            await asyncio.sleep(script.settle + _any_phase())
            if number == 0:
                await asyncio.sleep(script.calm)
                ledger.idle_begins()
                await asyncio.sleep(script.idle)
                ledger.idle_ends()
            ledger.release_begins()
        report = await waiters.wait_for_turns()
        ledger.add([report], report.cpu)
    await locks.close()
    return ledger.figures()


def _between_processes(contender: Contender, location: str, script: _Script) -> Figures:
    """This process is the holder; the waiters are in others."""
    processes = PROCESSES if contender.threads_exclude else script.waiters
    url = location + contender.at_server

    def part(index: int, end: Connection) -> None:
        share = script.waiters // processes + (index < script.waiters % processes)
        mine = script._replace(waiters=share)
        if contender.tasks is not None:
            asyncio.run(_wait_as_tasks(contender.tasks(url), mine, end))
        else:
            assert contender.threads is not None
            _wait_as_threads(contender.threads(url), mine, end)

    with ProcessGroup(processes, part) as group:
        stats = contender.server.stats(location) if contender.server is not None else None
        if contender.tasks is not None:
            return asyncio.run(_hold_as_task(contender.tasks(url), group, script, stats))
        assert contender.threads is not None
        return _hold_as_thread(contender.threads(url), group, script, stats)


def _hold_as_thread(locks: Locks, group: ProcessGroup, script: _Script, stats: Stats | None) -> Figures:
    ledger = _Ledger(lambda: time.process_time() + sum(map(cpu_of, group.pids)), stats)
    _warm_up(locks)
    group.receive()  # all are ready
    for number in range(script.passes):
        with locks.lock(NAME):
            group.send("held")
            group.receive()  # all have requested the lock
            time.sleep(script.settle + _any_phase())
            if number == 0:
                time.sleep(script.calm)
                ledger.idle_begins()
                time.sleep(script.idle)
                ledger.idle_ends()
            ledger.release_begins()
        reports: list[Report] = group.receive()
        ledger.add(reports, time.process_time() + sum(report.cpu for report in reports))
    group.receive()
    with locks.lock(NAME):
        ledger.last_release_begins()
    ledger.last_release_ends()
    locks.close()
    return ledger.figures()


async def _hold_as_task(locks: AsyncLocks, group: ProcessGroup, script: _Script, stats: Stats | None) -> Figures:
    ledger = _Ledger(lambda: time.process_time() + sum(map(cpu_of, group.pids)), stats)
    await _warm_up_awaited(locks)
    await asyncio.to_thread(group.receive)
    for number in range(script.passes):
        async with locks.lock(NAME):
            group.send("held")
            await asyncio.to_thread(group.receive)
            await asyncio.sleep(script.settle + _any_phase())
            if number == 0:
                await asyncio.sleep(script.calm)
                ledger.idle_begins()
                await asyncio.sleep(script.idle)
                ledger.idle_ends()
            ledger.release_begins()
        reports: list[Report] = await asyncio.to_thread(group.receive)
        ledger.add(reports, time.process_time() + sum(report.cpu for report in reports))
    await asyncio.to_thread(group.receive)
    async with locks.lock(NAME):
        ledger.last_release_begins()
    ledger.last_release_ends()
    await locks.close()
    return ledger.figures()


# ── the waiters ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _wait_as_threads(locks: Locks, script: _Script, end: Connection) -> None:
    _warm_up(locks)
    answer(end, None)
    for _ in range(script.passes):
        end.recv()  # the lock is held now
        waiters = _ThreadWaiters(locks, script.waiters)
        answer(end, None)
        answer(end, waiters.wait_for_turns())
    locks.close()


async def _wait_as_tasks(locks: AsyncLocks, script: _Script, end: Connection) -> None:
    await _warm_up_awaited(locks)
    answer(end, None)
    for _ in range(script.passes):
        await asyncio.to_thread(end.recv)
        waiters = await _TaskWaiters.start(locks, script.waiters)
        answer(end, None)
        answer(end, await waiters.wait_for_turns())
    await locks.close()


class _ThreadWaiters:
    """Threads that acquire the lock once. The constructor returns when all of them have requested it."""

    def __init__(self, locks: Locks, number: int) -> None:
        self._turns: list[Turn] = []
        self._errors: list[Exception] = []
        begun = threading.Semaphore(0)

        def wait() -> None:
            try:
                lock = locks.lock(NAME)
                begun.release()
                with lock:
                    acquired = now()
                    self._turns.append(Turn(0, 0.0, acquired, now()))
            except Exception as error:
                self._errors.append(error)
                begun.release()  # otherwise the parent would wait forever

        self._threads = [threading.Thread(target=wait) for _ in range(number)]
        for thread in self._threads:
            thread.start()
        for _ in self._threads:
            begun.acquire()

    def wait_for_turns(self) -> Report:
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
        return Report(self._turns, time.process_time())


class _TaskWaiters:
    """Tasks of this loop that acquire the lock once."""

    def __init__(self, tasks: list[asyncio.Task[None]], turns: list[Turn]) -> None:
        self._tasks = tasks
        self._turns = turns

    @classmethod
    async def start(cls, locks: AsyncLocks, number: int) -> _TaskWaiters:
        """Wait until all of them have requested the lock."""
        turns: list[Turn] = []

        async def wait(lock: AbstractAsyncContextManager[object]) -> None:
            async with lock:
                acquired = now()
                turns.append(Turn(0, 0.0, acquired, now()))

        tasks = [asyncio.create_task(wait(locks.lock(NAME))) for _ in range(number)]
        await asyncio.sleep(0)  # a task begins at the next iteration of the loop
        return cls(tasks, turns)

    async def wait_for_turns(self) -> Report:
        await asyncio.gather(*self._tasks)
        return Report(self._turns, time.process_time())


def _any_phase() -> float:
    """Return a random time up to the longest poll interval, so that the release is not aligned with polls."""
    return random.uniform(0.0, 0.25)  # noqa: S311  not secret


def _warm_up(locks: Locks) -> None:
    """Warm up every process: all imports and lazy initialisation are done."""
    with locks.lock("warm-up"):
        pass


async def _warm_up_awaited(locks: AsyncLocks) -> None:
    async with locks.lock("warm-up"):
        pass


# ── the cost ─────────────────────────────────────────────────────────────────────────────────────────────────────


class _Ledger:
    """The cost of each pass: time, CPU (including that of a server), and commands of a server."""

    def __init__(self, cpu: Callable[[], float], stats: Stats | None = None) -> None:
        """`cpu` returns the CPU seconds of all processes of the case, without the server."""
        self._cpu_of_clients = cpu
        self._stats = stats
        self._server = stats.pid() if stats is not None else None
        self._idle = 0.0
        self._idle_commands = 0.0
        self._last_release = 0.0
        self._from = (0.0, 0.0, 0.0)
        self._overlaps = 0
        self._handovers: list[float] = []
        self._cpus: list[float] = []
        self._commands: list[tuple[float, int]] = []

    def idle_begins(self) -> None:
        self._begin()

    def idle_ends(self) -> None:
        cpu, commands, wall = self._from
        took = now() - wall
        self._idle = (self._cpu_of_clients() + self._cpu_of_server() - cpu) / took
        self._idle_commands = (self._run_by_server() - commands) / took

    def release_begins(self) -> None:
        """The holder is about to release."""
        self._begin()

    def add(self, reports: Sequence[Report], cpu: float) -> None:
        """All waiters have had their turn; `cpu` is the CPU time of the clients so far."""
        cpu_before, commands_before, releasing = self._from
        turns = figures.in_order(turn for report in reports for turn in report.turns)
        self._overlaps += figures.overlaps([Turn(0, 0.0, float("-inf"), releasing), *turns])
        self._handovers.append((turns[-1].acquired - releasing) / len(turns))
        self._cpus.append((cpu + self._cpu_of_server() - cpu_before) / len(turns))
        self._commands.append((self._run_by_server() - commands_before, len(turns)))

    def last_release_begins(self) -> None:
        """The holder is about to release again, without a waiter."""
        self._last_release = self._run_by_server()

    def last_release_ends(self) -> None:
        self._last_release = self._run_by_server() - self._last_release

    def figures(self) -> Figures:
        measured: Figures = {
            "overlaps": self._overlaps,
            "handover": figures.median(self._handovers),
            "cpu": figures.median(self._cpus),
            "idle": self._idle,
        }
        if self._stats is not None:
            # With n waiters the lock is released n + 1 times and handed over n times: the last release has no waiter.
            measured["commands"] = figures.median(
                (count - self._last_release) / turns for count, turns in self._commands
            )
            measured["idle_commands"] = self._idle_commands
            self._stats.close()
        return measured

    def _begin(self) -> None:
        self._from = (self._cpu_of_clients() + self._cpu_of_server(), self._run_by_server(), now())

    def _cpu_of_server(self) -> float:
        return cpu_of(self._server) if self._server is not None else 0.0

    def _run_by_server(self) -> float:
        return self._stats.commands() if self._stats is not None else 0.0


def _settings(effort: Effort) -> list[Setting]:
    return [
        Setting(
            str(number),
            f"{number:,} wait",
            {
                "waiters": number,
                "passes": max(1, 10 // number),
                "settle": effort.settle_seconds * max(1.0, number / 300),
                "idle": effort.idle_seconds,
            },
        )
        for number in effort.waiters
    ]


def _cannot(contender: Contender, setting: Setting) -> str | None:
    number, arena = int(setting.numbers["waiters"]), contender.arena
    if contender.waits is None:
        return "cannot wait"
    if not contender.threads_exclude and number > PROCESSES_MAX:
        return "would take a process for each waiter"
    if contender.connection_each and number > CONNECTIONS_MAX:
        return "would take a connection for each waiter"
    is_polling_peer = not contender.ours and contender.waits.startswith("polls")
    if (arena in SLOW or is_polling_peer) and number > SLOW_MAX:
        return "would take too long"
    return None if arena in ONLY_FOR.get(number, (arena,)) else "is not asked of it"


def _cores(contender: Contender) -> Literal["one", "all"]:
    return "all" if contender.arena.has_processes else "one"


def _layout(contender: Contender, setting: Setting) -> str:
    number, unit = int(setting.numbers["waiters"]), "threads" if contender.tasks is None else "tasks"
    if not contender.arena.has_processes:
        return f"{number:,} {unit}"
    if contender.threads_exclude:
        return f"{PROCESSES}×{number // PROCESSES} {unit}"
    return f"{number:,} processes"


MEASURE = Measure(
    name="waiters",
    title="A long queue: one hand-over through all who wait",
    explains=(
        "hand-over: from the release until the last waiter has had its turn, divided by their number. CPU: of all "
        "processes together, a server's too, for one hand-over; commands: that the server runs for one, those within "
        "scripts included. idle: what they use of a core, and how many commands per second, while all of them wait. "
        "Less is better throughout."
    ),
    settings=_settings,
    run=run,
    cannot=_cannot,
    columns=(
        Column("handover", "hand-over\nms", scale=1e3),
        Column("cpu", "CPU\nms", scale=1e3),
        Column("idle", "idle\nCPU %", scale=100),
        Column("commands", "com-\nmands"),
        Column("idle_commands", "idle\n/s"),
    ),
    lines=(
        Panel("ms for one hand-over, by the number that wait", "handover", None, 1e3),
        Panel("commands that the server runs for one hand-over, by the number that wait", "commands"),
        Panel("commands per second that the server runs while all wait, by their number", "idle_commands"),
    ),
    ratio_of="handover",
    cores=_cores,
    layout=_layout,
    rounds=lambda effort: effort.long_rounds,
    limit=20.0,
)
