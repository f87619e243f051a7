"""Several clients request the same lock continuously: the gaps between holders, and the waits.

It also verifies that no two turns overlap.
"""

from __future__ import annotations

import asyncio
import threading
import time
from array import array
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Literal

from benchmarks import figures
from benchmarks.contender import Arena, AsyncLocks, Contender, Locks
from benchmarks.figures import Turn
from benchmarks.measure import Column, Effort, Figures, Measure, Panel, Setting, now
from benchmarks.processes import HEAD_START, ProcessGroup, ready, sleep_until

HOLD = 0.002  # seconds


def run(contender: Contender, numbers: Mapping[str, float], location: str) -> Figures:
    """Return the figures of one window; see the columns below."""
    clients, seconds, hold = int(numbers["crowd"]), numbers["seconds"], numbers["hold"]
    if not contender.arena.has_processes:
        seconds /= 2  # no client polls there, or waits for seconds
    if contender.arena is Arena.TASKS:
        assert contender.tasks is not None
        begin, times_of_clients = asyncio.run(_many_tasks(contender.tasks(location), clients, seconds, hold))
    elif contender.arena is Arena.THREADS:
        assert contender.threads is not None
        begin, times_of_clients = _many_threads(contender.threads(location), clients, seconds, hold)
    else:
        begin, times_of_clients = _many_processes(contender, location, clients, seconds, hold)
    turns = [
        Turn(client, *times[at : at + 3])
        for client, times in enumerate(times_of_clients)
        for at in range(0, len(times), 3)  # flat arrays of (requested, acquired, releasing) are cheap to fill
    ]
    return judge(turns, clients, begin, begin + seconds)


def judge(turns: list[Turn], clients: int, begin: float, end: float) -> Figures:
    """Compute the figures from the turns of a window."""
    turns = figures.in_order(turns)
    inside = [turn for turn in turns if begin <= turn.acquired <= end]
    # A wait that began in the window counts in full, also if it ended later. Otherwise starvation would not show.
    waits = [turn.acquired - turn.requested for turn in turns if turn.requested <= end]
    gaps = figures.gaps(inside) or [end - begin]
    handed_over = [
        after.acquired - before.releasing for before, after in pairwise(inside) if before.client != after.client
    ]
    counts = [0] * clients
    for turn in inside:
        counts[turn.client] += 1
    held = sum(min(turn.releasing, end) - turn.acquired for turn in inside)
    judged: Figures = {
        "overlaps": figures.overlaps(turns),
        "held": held / (end - begin),
        "turns": len(inside) / (end - begin),
        "changes": figures.changes(inside),
        "gap": figures.median(gaps),
        "gap_p99": figures.quantile(gaps, 0.99),
        "wait": figures.median(waits),
        "wait_p99": figures.quantile(waits, 0.99),
        "wait_max": max(waits),
        "jain": figures.jain(counts),
    }
    if handed_over:  # not in the tables
        judged["gap_to_another"] = figures.median(handed_over)  # only between different clients
        # The wait if all clients take their turns in order, with the measured holds and gaps.
        hold = figures.median(turn.releasing - turn.acquired for turn in inside)
        judged["fair_share"] = clients * (hold + judged["gap_to_another"])
        judged["wait_p99_of_share"] = judged["wait_p99"] / judged["fair_share"]
        judged["wait_max_of_share"] = judged["wait_max"] / judged["fair_share"]
    return judged


def _many_processes(
    contender: Contender, location: str, clients: int, seconds: float, hold: float
) -> tuple[float, list[array[float]]]:
    def part(_: int, end: Connection) -> array[float]:
        if contender.tasks is not None:
            return asyncio.run(_one_task(contender.tasks(location), end, seconds, hold))
        assert contender.threads is not None
        locks = contender.threads(location)
        lock = locks.lock("wanted")
        with lock:  # warm-up; creates the file
            pass
        begin = ready(end)
        sleep_until(begin)
        times = take_turns(lock, begin + seconds, hold)
        locks.close()
        return times

    with ProcessGroup(clients, part) as processes:
        begin = processes.start()
        return begin, processes.receive()


async def _one_task(locks: AsyncLocks, end: Connection, seconds: float, hold: float) -> array[float]:
    lock = locks.lock("wanted")
    async with lock:
        pass
    begin = ready(end)
    sleep_until(begin)
    times = await _take_turns_awaited(lock, begin + seconds, hold)
    await locks.close()
    return times


def _many_threads(locks: Locks, clients: int, seconds: float, hold: float) -> tuple[float, list[array[float]]]:
    begin = now() + HEAD_START
    times_of_clients: list[array[float]] = [array("d") for _ in range(clients)]

    def part(client: int) -> None:
        lock = locks.lock("wanted")
        sleep_until(begin)
        times_of_clients[client] = take_turns(lock, begin + seconds, hold)

    threads = [threading.Thread(target=part, args=(client,)) for client in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    locks.close()
    return begin, times_of_clients


async def _many_tasks(locks: AsyncLocks, clients: int, seconds: float, hold: float) -> tuple[float, list[array[float]]]:
    begin = now()
    parts = [_take_turns_awaited(locks.lock("wanted"), begin + seconds, hold) for _ in range(clients)]
    times_of_clients = await asyncio.gather(*parts)
    await locks.close()
    return begin, times_of_clients


def take_turns(lock: AbstractContextManager[object], end: float, hold: float) -> array[float]:
    times = array("d")
    note = times.append
    while (requested := now()) < end:
        with lock:
            acquired = now()
            if hold:
                time.sleep(hold)
            releasing = now()
        note(requested)
        note(acquired)
        note(releasing)
    return times


async def _take_turns_awaited(lock: AbstractAsyncContextManager[object], end: float, hold: float) -> array[float]:
    times = array("d")
    note = times.append
    while (requested := now()) < end:
        async with lock:
            acquired = now()
            # Without a hold, one iteration of the loop, so that other tasks can request the lock.
            await asyncio.sleep(hold)
            releasing = now()
        note(requested)
        note(acquired)
        note(releasing)
    return times


def _settings(effort: Effort) -> list[Setting]:
    settings = [
        Setting(
            f"{clients}-hold-2ms",
            f"{clients} contend, each holds it 2 ms",
            {"crowd": clients, "seconds": effort.contended_seconds, "hold": HOLD},
        )
        for clients in effort.crowds
    ]
    if effort.back_to_back:
        most = max(effort.crowds)
        numbers = {"crowd": most, "seconds": effort.contended_seconds, "hold": 0.0}
        settings.append(Setting(f"{most}-back-to-back", f"{most} contend, back to back", numbers))
    return settings


def _cannot(contender: Contender, _: Setting) -> str | None:
    return None if contender.waits else "cannot wait"


def _cores(contender: Contender) -> Literal["one", "all"]:
    return "all" if contender.arena.has_processes else "one"


MEASURE = Measure(
    name="contended",
    title="A contended lock: hand-over and fairness",
    explains=(
        "gap: from the start of a release to the return of the next acquire; wait: for an acquire, max over all "
        "rounds; both in ms, less is better. held: share of time in which the lock was held; other next: turns "
        "followed by another client; more is better. Jain: 1 is fair, 1/n is one for all. Checked throughout: no "
        "two turns overlap."
    ),
    settings=_settings,
    run=run,
    cannot=_cannot,
    columns=(
        Column("held", "held\n%", scale=100),
        Column("turns", "turns\n/s", plain=True),
        Column("changes", "other\nnext %", scale=100, plain=True),
        Column("gap", "gap\nms", scale=1e3),
        Column("gap_p99", "gap\np99", scale=1e3),
        Column("wait_p99", "wait\np99", scale=1e3),
        Column("wait_max", "wait\nmax", scale=1e3, over_rounds="max"),
        Column("jain", "Jain"),
    ),
    panels=(
        Panel("ms from release to next holder: ● median ○ p99", "gap", "gap_p99", 1e3),
        Panel("ms to wait: ● p99 ○ longest", "wait_p99", "wait_max", 1e3),
    ),
    ratio_of="gap",
    cores=_cores,
    rounds=lambda effort: min(effort.rounds, effort.contended_rounds),
)
