"""Hazard: an asyncio client that works only on the loop of the standard library.

The loops differ in how they choose between the methods of a protocol, and in when they call it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast_lab.conformance.cases import Case
from tests.conformance.backends import CASES
from tests.support.processes import PATIENCE
from tests.support.redis import shared as redis

uvloop = pytest.importorskip("uvloop", reason="uvloop has no wheel for this Python")

TASKS, TURNS, CANCELLED = 6, 5, 12


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES if not case.is_variant])
def test_a_client_works_on_uvloop(case: Case, tmp_path: Path) -> None:
    async def main() -> None:
        async with holdfast.AsyncClient(case.fresh_url(tmp_path)) as client:
            fences = await asyncio.gather(*(_take_turns(client) for _ in range(TASKS)))
            await _cancel_at_each_step(client)
            async with client.lock("shared", timeout=60) as lease:
                assert lease.fence > max(itertools.chain(*fences))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_sys_exit_under_a_lock_ends_the_loop() -> None:
    clients: list[holdfast.AsyncClient] = []
    late: list[str] = []

    async def main() -> None:
        clients.append(holdfast.AsyncClient(redis.fresh_url()))
        lock = clients[0].lock("one")
        for _ in range(2):  # the second acquire uses the straight path
            async with lock:
                pass
        async with lock:
            sys.exit(3)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        loop = runner.get_loop()

        def stop_late() -> None:
            late.append("the loop has not ended")
            loop.stop()

        timer = loop.call_later(PATIENCE, stop_late)
        with pytest.raises(SystemExit):
            runner.run(main())
        timer.cancel()
        runner.run(clients[0].close())

    assert late == []


async def _take_turns(client: holdfast.AsyncClient) -> list[int]:
    fences = []
    for _ in range(TURNS):
        async with client.lock("shared", timeout=60) as lease:
            await asyncio.sleep(0)
            lease.check()
            fences.append(lease.fence)
    assert fences == sorted(set(fences))
    return fences


async def _cancel_at_each_step(client: holdfast.AsyncClient) -> None:
    """Cancel an acquire after one iteration of the loop, after two, and so on."""

    async def hold() -> None:
        async with client.lock("shared", timeout=60):
            await asyncio.Event().wait()

    for steps in range(CANCELLED):
        task = asyncio.create_task(hold())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
