"""Jobs that every machine schedules: one runs once in each period, one never overlaps itself. With APScheduler 3.

    python examples/apscheduler_job.py              # start it twice, here or on several machines
    python examples/apscheduler_job.py --asyncio    # the same with AsyncIOScheduler and AsyncClient

$HOLDFAST_URL is the store that they share; without it, processes of this machine share a file. Each process calls both
jobs every half second. Ctrl-C or SIGTERM ends it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler

import holdfast

PERIOD = "2s"  # "1d" in real life
SKIPPED = "skipped: this period has its run"


def say(text: str) -> None:
    print(f"process {os.getpid()}: {text}", flush=True)


def with_threads() -> None:
    client = holdfast.Client()

    @client.once_per(PERIOD, name="report", skipped=SKIPPED)
    def report() -> str:
        return f"run by process {os.getpid()}"

    def call() -> None:
        say(report())

    @client.locked("sync", busy="skip")
    def sync() -> None:
        say("sync begins")
        time.sleep(0.7)
        say("sync ends")

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    scheduler = BackgroundScheduler(timezone="UTC")
    scheduler.add_job(call, "interval", seconds=0.5, misfire_grace_time=60)
    scheduler.add_job(sync, "interval", seconds=0.5, max_instances=2)
    scheduler.start()
    while not stop.wait(1):  # a wait without a limit does not notice a signal that another thread gets
        pass
    scheduler.shutdown()  # waits for a run that is under way
    client.close()


async def with_asyncio() -> None:
    async with holdfast.AsyncClient() as client:

        @client.once_per(PERIOD, name="report", skipped=SKIPPED)
        async def report() -> str:
            return f"run by process {os.getpid()}"

        async def call() -> None:
            say(await report())

        @client.locked("sync", busy="skip")
        async def sync() -> None:
            say("sync begins")
            await asyncio.sleep(0.7)
            say("sync ends")

        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        scheduler = AsyncIOScheduler(timezone="UTC")
        scheduler.add_job(call, "interval", seconds=0.5, misfire_grace_time=60)
        scheduler.add_job(sync, "interval", seconds=0.5, max_instances=2)
        scheduler.start()
        await stop.wait()
        scheduler.shutdown()  # cancels a run that is under way


if __name__ == "__main__":
    if "--asyncio" in sys.argv:
        asyncio.run(with_asyncio())
    else:
        with_threads()
