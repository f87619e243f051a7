"""Hazard: with many locks and waiters, `holdfast top` shows changes late, or loads the server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.top import INTERVAL
from tests.integration.redis.many_waiters import LOCKS, NAMES, WAITERS
from tests.support.redis.servers import Server
from tests.support.top import Screen, run_top

PROGRAM = Path(__file__).with_name("many_waiters.py")
HANDOVERS = 15


@pytest.fixture
def waiters(server: Server) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(PROGRAM), f"{server.url}?local_handover=no"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


@pytest.mark.slow
def test_top_follows_200_locks_with_1000_waiters(server: Server, waiters: subprocess.Popen[str]) -> None:
    """The test prints the delay from a hand-over to the screen, and the share of the server that top uses."""
    delays: list[float] = []

    def hand_over(name: str) -> tuple[int, float]:
        assert waiters.stdin is not None
        assert waiters.stdout is not None
        waiters.stdin.write(f"{name}\n")
        waiters.stdin.flush()
        fence, acquired_at = waiters.stdout.readline().split()
        return int(fence), float(acquired_at)

    def server_seconds() -> float:
        cpu = server.info("cpu")
        return float(cpu["used_cpu_user_main_thread"]) + float(cpu["used_cpu_sys_main_thread"])

    async def steps(screen: Screen) -> None:
        await screen.shows(f"{LOCKS} locks, {WAITERS:,} waiters")
        await screen.press("space")  # top is paused, so the server has only the requests of the waiters
        began, used = time.monotonic(), server_seconds()
        await asyncio.sleep(2)  # the time over which the cost is measured
        unwatched = (server_seconds() - used) / (time.monotonic() - began)
        await screen.press("space")
        began, used = time.monotonic(), server_seconds()
        for number in range(HANDOVERS):
            fence, acquired_at = await asyncio.to_thread(hand_over, NAMES[number * 7 % LOCKS])

            def is_shown(name: str = NAMES[number * 7 % LOCKS], fence: int = fence) -> bool:
                lock = screen.app.find(name)
                return lock is not None and [holder.fence for holder in lock.holders] == [fence]

            await screen.until(is_shown)
            delays.append(screen.app.shown_at - acquired_at)
        share = (server_seconds() - used) / (time.monotonic() - began)
        delays.sort()
        print(  # noqa: T201 - the result
            f"\n{LOCKS} locks, {WAITERS} waiters: delay to the screen p50 {delays[HANDOVERS // 2]:.2f} s, "
            f"at most {delays[-1]:.2f} s; the server uses {share:.1%} of a core, and {unwatched:.1%} without top"
        )
        await screen.press("end", "enter")
        await screen.shows("lock-", "waiter")

    run_top(server.url, steps, interval=INTERVAL)

    assert len(delays) == HANDOVERS
