"""One process acquires and releases a free lock repeatedly: the cost of an uncontended lock."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from itertools import repeat
from types import FrameType
from typing import Self

from benchmarks.contender import Arena, AsyncLocks, Contender, Locks
from benchmarks.figures import median, quantile
from benchmarks.measure import Column, Effort, Figures, Measure, Panel, Setting

BATCH_SECONDS = 0.002  # much longer than a reading of the clock, and shorter than typical disturbances
SINGLES_SHARE = 0.4  # part of the time for pairs that are timed one by one
SINGLES_MAX = 200_000  # limits memory
DELAY = 0.005  # seconds, to a remote server
AWAY_FACTOR = 3  # pairs are slow there, so that more time is needed


def run(contender: Contender, numbers: Mapping[str, float], location: str) -> Figures:
    """Return the seconds per pair: the median of many batches, and the p99 of single pairs."""
    if contender.tasks is not None:
        return asyncio.run(_tasks(contender.tasks(location), numbers["seconds"]))
    assert contender.threads is not None
    return _threads(contender.threads(location), numbers["seconds"])


def _threads(locks: Locks, seconds: float) -> Figures:
    lock = locks.lock("lonely")
    size = 1
    while (took := _batch(lock, size)) < BATCH_SECONDS and size < 1 << 16:  # also the warm-up
        size = max(size + 1, min(size * 4, int(size * BATCH_SECONDS / max(took, 1e-9))))
    batches = _for(seconds * (1 - SINGLES_SHARE), lambda: _batch(lock, size) / size)
    singles = _for(seconds * SINGLES_SHARE, lambda: _single(lock))
    with _Count() as count:
        _single(lock)
    locks.close()
    return _figures(batches, singles, count)


async def _tasks(locks: AsyncLocks, seconds: float) -> Figures:
    lock = locks.lock("lonely")
    size = 1
    while (took := await _batch_awaited(lock, size)) < BATCH_SECONDS and size < 1 << 16:
        size = max(size + 1, min(size * 4, int(size * BATCH_SECONDS / max(took, 1e-9))))

    async def batch() -> float:
        return await _batch_awaited(lock, size) / size

    batches = await _for_awaited(seconds * (1 - SINGLES_SHARE), batch)
    singles = await _for_awaited(seconds * SINGLES_SHARE, lambda: _single_awaited(lock))
    with _Count() as count:
        await _single_awaited(lock)
    await locks.close()
    return _figures(batches, singles, count)


def _batch(lock: AbstractContextManager[object], size: int) -> float:
    started = time.perf_counter()
    for _ in repeat(None, size):
        with lock:
            pass
    return time.perf_counter() - started


async def _batch_awaited(lock: AbstractAsyncContextManager[object], size: int) -> float:
    started = time.perf_counter()
    for _ in repeat(None, size):
        async with lock:
            pass
    return time.perf_counter() - started


def _single(lock: AbstractContextManager[object]) -> float:
    started = time.perf_counter()
    with lock:
        pass
    return time.perf_counter() - started


async def _single_awaited(lock: AbstractAsyncContextManager[object]) -> float:
    started = time.perf_counter()
    async with lock:
        pass
    return time.perf_counter() - started


def _for(seconds: float, once: Callable[[], float]) -> list[float]:
    end, values = time.perf_counter() + seconds, [once()]
    while time.perf_counter() < end and len(values) < SINGLES_MAX:
        values.append(once())
    return values


async def _for_awaited(seconds: float, once: Callable[[], Awaitable[float]]) -> list[float]:
    end, values = time.perf_counter() + seconds, [await once()]
    while time.perf_counter() < end and len(values) < SINGLES_MAX:
        values.append(await once())
    return values


class _Count:
    """Counts the Python frames and the calls of C functions on this thread: with cold caches, code costs time.

    Frames of an event loop count too, and so do resumed coroutines. The function that is timed is included.
    """

    def __init__(self) -> None:
        self.frames = self.c_calls = 0

    def __enter__(self) -> Self:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, _: FrameType, event: str, __: object) -> None:
        self.frames += event == "call"
        self.c_calls += event == "c_call"


def _figures(batches: list[float], singles: list[float], count: _Count) -> Figures:
    return {
        "pair": median(batches),
        "single": median(singles),
        "single_p99": quantile(singles, 0.99),
        "frames": count.frames,
        "c_calls": count.c_calls,
    }


def _settings(effort: Effort) -> list[Setting]:
    away = {"seconds": AWAY_FACTOR * effort.pairs_seconds, "delay": DELAY}
    return [
        Setting("pairs", "no other client uses the lock", {"seconds": effort.pairs_seconds}),
        Setting("apart", "client and servers on cores of their own", {"seconds": effort.pairs_seconds, "apart": 1}),
        Setting("5ms-away", "every request takes 5 ms to arrive", away),
    ]


def _cannot(contender: Contender, setting: Setting) -> str | None:
    # For other contenders a delay would only be added to each pair. For a quorum it shows how many round trips it needs
    # in sequence, and its cost when the nodes run on other cores than the client.
    is_for_quorums = setting.delay or setting.is_apart
    return "is not asked of it" if is_for_quorums and contender.arena is not Arena.REDLOCK else None


MEASURE = Measure(
    name="uncontended",
    title="A free lock: acquire and release",
    explains=(
        "Microseconds for one `with lock: pass`; less is better. p99: of pairs timed one by one. Python frames and C "
        "calls: of one pair, with its timing and with those of the event loop."
    ),
    settings=_settings,
    run=run,
    cannot=_cannot,
    columns=(
        Column("pair", "a pair\nµs", scale=1e6),
        Column("single_p99", "p99\nµs", scale=1e6),
        Column("frames", "Python\nframes", plain=True),
        Column("c_calls", "C\ncalls", plain=True),
    ),
    panels=(Panel("µs for acquire and release: ● median ○ p99", "pair", "single_p99", 1e6),),
    ratio_of="pair",
)
