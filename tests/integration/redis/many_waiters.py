"""A program that holds 200 locks for which 1,000 tasks wait: `many_waiters.py URL`.

It prints "ready". For each name of a lock that it reads, it releases the lock, and prints the fence of the next holder
and the Unix time at which it acquired the lock.
"""

from __future__ import annotations

import asyncio
import sys
import time

import holdfast

LOCKS, WAITERS = 200, 1000
NAMES = [f"lock-{number:03}" for number in range(LOCKS)]


async def main(url: str) -> None:
    release: dict[str, asyncio.Event] = {}
    started: asyncio.Queue[str] = asyncio.Queue()

    async with holdfast.AsyncClient(url) as client:

        async def work(name: str) -> None:
            async with client.lock(name) as lease:
                release[name] = asyncio.Event()
                await started.put(f"{lease.fence} {time.time()}")
                await release[name].wait()

        tasks = [asyncio.create_task(work(name)) for name in NAMES]
        for _ in NAMES:
            await started.get()
        tasks += [asyncio.create_task(work(NAMES[number % LOCKS])) for number in range(WAITERS)]
        print("ready", flush=True)  # noqa: T201 - the test reads it
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            release[line.strip()].set()
            print(await started.get(), flush=True)  # noqa: T201 - as above
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
