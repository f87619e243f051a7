"""A job that every machine schedules and one of them runs, once in each period. With APScheduler 3.

    python examples/apscheduler_job.py              # start it twice, here or on several machines
    python examples/apscheduler_job.py --asyncio    # the same with AsyncIOScheduler and AsyncClient

$HOLDFAST_URL is the store that they share; without it, processes of this machine share a file. Each process calls the
job every half second and prints the result. Ctrl-C or SIGTERM ends it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler

import holdfast

PERIOD = "2s"  # "1d" in real life
SKIPPED = "skipped: this period has its run"


def with_threads() -> None:
    client = holdfast.Client()

    @client.once_per(PERIOD, name="report", skipped=SKIPPED)
    def report() -> str:
        return f"run by process {os.getpid()}"

    def call() -> None:
        print(report(), flush=True)

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    scheduler = BackgroundScheduler(timezone="UTC")
    scheduler.add_job(call, "interval", seconds=0.5)
    scheduler.start()
    stop.wait()
    scheduler.shutdown()  # waits for a run that is under way
    client.close()


async def with_asyncio() -> None:
    async with holdfast.AsyncClient() as client:

        @client.once_per(PERIOD, name="report", skipped=SKIPPED)
        async def report() -> str:
            return f"run by process {os.getpid()}"

        async def call() -> None:
            print(await report(), flush=True)

        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        scheduler = AsyncIOScheduler(timezone="UTC")
        scheduler.add_job(call, "interval", seconds=0.5)
        scheduler.start()
        await stop.wait()
        scheduler.shutdown()


if __name__ == "__main__":
    if "--asyncio" in sys.argv:
        asyncio.run(with_asyncio())
    else:
        with_threads()
