"""One process holds very many leases with a short ttl: the cost of renewing all of them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping

from benchmarks.contender import AsyncLocks, Contender, Locks
from benchmarks.measure import Column, Effort, Figures, Measure, Panel, Setting, now

WINDOW = 2 / 3  # part of the ttl in which a contender that renews every third of the ttl renews twice
PAGE = os.sysconf("SC_PAGE_SIZE")


def run(contender: Contender, numbers: Mapping[str, float], location: str) -> Figures:
    """Acquire the leases one by one, sleep while they are renewed, release them one by one."""
    count, ttl = int(numbers["leases"]), numbers["ttl"]
    if contender.tasks is not None:
        return asyncio.run(_tasks(contender.tasks(location), count, ttl))
    assert contender.threads is not None
    return _threads(contender.threads(location), count, ttl)


def _threads(locks: Locks, count: int, ttl: float) -> Figures:
    with locks.lock("warm-up", ttl):
        pass
    memory, started = _resident(), now()
    held = [locks.lock(f"lease-{number}", ttl) for number in range(count)]
    for lock in held:
        lock.__enter__()
    acquired, memory = now() - started, _resident() - memory

    cpu, started = time.process_time(), now()
    time.sleep(WINDOW * ttl)
    share = (time.process_time() - cpu) / (now() - started)

    lost, started = 0, now()
    for lock in held:
        try:
            lock.__exit__(None, None, None)
        except Exception:
            lost += 1
    released = now() - started
    locks.close()
    return {"acquire": acquired, "release": released, "cpu": share, "memory": memory / count, "lost": lost}


async def _tasks(locks: AsyncLocks, count: int, ttl: float) -> Figures:
    async with locks.lock("warm-up", ttl):
        pass
    memory, started = _resident(), now()
    held = [locks.lock(f"lease-{number}", ttl) for number in range(count)]
    for lock in held:
        await lock.__aenter__()
    acquired, memory = now() - started, _resident() - memory

    cpu, started = time.process_time(), now()
    await asyncio.sleep(WINDOW * ttl)
    share = (time.process_time() - cpu) / (now() - started)

    lost, started = 0, now()
    for lock in held:
        try:
            await lock.__aexit__(None, None, None)
        except Exception:
            lost += 1
    released = now() - started
    await locks.close()
    return {"acquire": acquired, "release": released, "cpu": share, "memory": memory / count, "lost": lost}


def _resident() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE


def _settings(effort: Effort) -> list[Setting]:
    ttl = effort.leases_ttl
    return [
        Setting(str(count), f"{count:,} leases in one process, ttl {ttl:g} s", {"leases": count, "ttl": ttl})
        for count in effort.leases
    ]


def _cannot(contender: Contender, _: Setting) -> str | None:
    return None if contender.has_ttl else "has no ttl"


MEASURE = Measure(
    name="leases",
    title="Many leases: keeping them alive",
    explains=(
        "CPU: what renewing them all takes of one core. memory: growth of the process, for each lease. "
        "lost: leases that ended before they were released. Less is better throughout."
    ),
    settings=_settings,
    run=run,
    cannot=_cannot,
    columns=(
        Column("cpu", "CPU\n%", scale=100),
        Column("memory", "memory\nkB each", scale=1e-3),
        Column("acquire", "acquire\nall, s"),
        Column("release", "release\nall, s"),
        Column("lost", "lost", plain=True),
    ),
    panels=(
        Panel("% of one core to renew them all", "cpu", None, 100),
        Panel("kB of memory for each", "memory", None, 1e-3),
    ),
    by_arena=False,
    rounds=lambda effort: effort.long_rounds,
    limit=15.0,
)
