"""Hazard: a release that is pending at the end of asyncio.run is never sent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import holdfast


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_a_wait_cancelled_at_the_very_end_leaves_the_queue(backend: str, tmp_path: Path) -> None:
    url = "memory://loop-end" if backend == "memory" else f"sqlite://{tmp_path}/locks.db"
    # Never closed and still referenced: only the keeper can release its ticket.
    waiting_client = holdfast.AsyncClient(url)

    async def main() -> None:
        waiting = asyncio.create_task(_wait(waiting_client))
        while not (await waiting_client.inspect("a")).waiters:
            await asyncio.sleep(0.001)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    with holdfast.Client(url) as client, client.lock("a"):
        asyncio.run(main())

        assert client.inspect("a").waiters == ()
    assert waiting_client.url


async def _wait(client: holdfast.AsyncClient) -> None:
    await client.lock("a").acquire()


def test_a_program_interrupted_in_a_body_releases_the_lock(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/locks.db"

    async def main() -> None:
        async with holdfast.AsyncClient(url) as client, client.lock("a"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())

    with holdfast.Client(url) as client:
        assert client.locks() == []
