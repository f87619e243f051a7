"""Many tasks of one event loop at once, each with an uncontended lock of its own: the throughput.

One task waits for its own round trips; many tasks can share them. This measures the effect and its cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

from benchmarks.contender import AsyncLocks, Contender
from benchmarks.measure import Column, Effort, Figures, Measure, Panel, Setting, now

TASKS = 50


def run(contender: Contender, numbers: Mapping[str, float], location: str) -> Figures:
    """Return the seconds per pair, from the total throughput of all tasks."""
    assert contender.tasks is not None
    return asyncio.run(_tasks(contender.tasks(location), int(numbers["tasks"]), numbers["seconds"]))


async def _tasks(locks: AsyncLocks, number: int, seconds: float) -> Figures:
    own_locks = [locks.lock(f"own-{which}") for which in range(number)]
    # Warm-up: everything is imported, created and connected.
    await asyncio.gather(*(_take(lock, now()) for lock in own_locks))
    begin = now()
    turns = await asyncio.gather(*(_take(lock, begin + seconds) for lock in own_locks))
    took = now() - begin
    await locks.close()
    return {"pair": took / sum(turns), "rate": sum(turns) / took}


async def _take(lock: AbstractAsyncContextManager[object], end: float) -> int:
    turns = 0
    while not turns or now() < end:
        async with lock:
            # One iteration of the loop, as in "contended": a lock that never waits would block the other tasks.
            await asyncio.sleep(0)
        turns += 1
    return turns


def _settings(effort: Effort) -> list[Setting]:
    return [
        Setting(
            f"{TASKS}-tasks",
            f"{TASKS} tasks, each with a lock of its own",
            {"tasks": TASKS, "seconds": effort.pairs_seconds},
        )
    ]


def _cannot(contender: Contender, _: Setting) -> str | None:
    return None if contender.tasks is not None else "is not for asyncio"


MEASURE = Measure(
    name="many",
    title="Many locks at once: 50 tasks of one event loop",
    explains=(
        "Each of them takes and gives back a free lock of its own, all the time. Microseconds for one `async with "
        "lock`, by how many all of them together get through; less is better. pairs/s: the same as a rate."
    ),
    settings=_settings,
    run=run,
    cannot=_cannot,
    columns=(
        Column("pair", "a pair\nµs", scale=1e6),
        Column("rate", "pairs\n/s", plain=True),
    ),
    panels=(Panel("µs for acquire and release, of 50 at once", "pair", None, 1e6),),
    ratio_of="pair",
)
