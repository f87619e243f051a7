"""A writer is paused while it holds a lock, for longer than its ttl. Its late write, without and with a guard.

    python examples/paused_writer.py

Two shops, each with 100 pieces in stock and two workers that sell from it under a lock. Worker 1 reads the stock and is
stopped (SIGSTOP; in practice a laptop's lid, a migrated virtual machine). Its lease expires, worker 2 takes over and
sells. Then worker 1 continues: it has read 100, and writes the stock that it has computed from that.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from multiprocessing.connection import Connection

import holdfast
from holdfast.fencing.sql import SQLiteGuard

TTL = 3.0  # seconds
PATIENCE = 30.0  # seconds; a longer wait is a failure
SHOPS = {"without the guard": False, "with the guard": True}

Pause = Callable[[], None]
guard = SQLiteGuard()


def sell(shop: str, database: sqlite3.Connection, pieces: int, fence: int, pause: Pause, *, guarded: bool) -> int:
    """Take some pieces from the stock: read, think, write. The fence is checked with the read and with the write."""
    with database:  # a transaction
        if guarded:
            guard.check(database.cursor(), shop, fence)  # from here on no older lease changes what is read
        [left] = database.execute("SELECT left FROM stock").fetchone()
    pause()  # anything may happen between two lines
    with database:
        if guarded:
            guard.check(database.cursor(), shop, fence)  # StaleFence: it rolls back
        database.execute("UPDATE stock SET left = ?", (left - pieces,))
    return int(left - pieces)


def work(shop: str, path: str, pieces: int, pipe: Connection, *, guarded: bool) -> None:
    """A worker process with one sale. It reports its steps on the pipe, and pauses until it receives a message."""

    def pause() -> None:
        pipe.send("has read the stock")
        pipe.recv()

    try:
        with (
            closing(sqlite3.connect(path, timeout=PATIENCE)) as database,
            holdfast.Client() as client,  # the embedded default, or $HOLDFAST_URL
            client.lock(shop, ttl=TTL) as lease,
        ):
            pipe.send(f"wrote {sell(shop, database, pieces, lease.fence, pause, guarded=guarded)}")
    except holdfast.StaleFence:
        pipe.send("StaleFence")
    except holdfast.LockLost:
        pipe.send("LockLost")  # too late: it has written


class Worker:
    """A worker process and the pipe to it."""

    def __init__(self, shop: str, path: str, pieces: int, *, guarded: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=work, args=(shop, path, pieces, theirs), kwargs={"guarded": guarded}, daemon=True
        )
        self._process.start()
        theirs.close()

    def receive(self) -> str:
        if not self._pipe.poll(PATIENCE):
            raise SystemExit("a worker does not answer")
        return str(self._pipe.recv())

    def resume(self) -> None:
        self._pipe.send("resume")

    def signal(self, number: int) -> None:
        os.kill(self._process.pid or 0, number)


def row(label: str, cells: list[str]) -> None:
    print("".join([f"{label:<34}", *(f"{cell:<22}" for cell in cells)]).rstrip(), flush=True)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        names = {shop: f"{shop} {os.getpid()}" for shop in SHOPS}
        paths = {shop: os.path.join(folder, f"{guarded}.db") for shop, guarded in SHOPS.items()}
        for path in paths.values():
            with closing(sqlite3.connect(path)) as database:
                guard.create(database.cursor())
                database.execute("CREATE TABLE stock (left INTEGER)")
                database.execute("INSERT INTO stock VALUES (100)")
                database.commit()

        def start_workers(pieces: int) -> list[Worker]:
            return [Worker(names[shop], paths[shop], pieces, guarded=guarded) for shop, guarded in SHOPS.items()]

        row("", list(SHOPS))
        first = start_workers(pieces=5)
        row("worker 1 takes the lock", [worker.receive() for worker in first])
        for worker in first:
            worker.signal(signal.SIGSTOP)
        row("worker 1 is stopped", ["…", "…"])
        second = start_workers(pieces=30)
        row(f"worker 2 gets it after {TTL:g} s", [worker.receive() for worker in second])
        for worker in second:
            worker.resume()
        row("worker 2 sells 30", [worker.receive() for worker in second])
        for worker in first:
            worker.signal(signal.SIGCONT)
            worker.resume()
        row("worker 1 goes on and sells 5", [worker.receive() for worker in first])

        left = []
        for path in paths.values():
            with closing(sqlite3.connect(path)) as database:
                left += database.execute("SELECT left FROM stock").fetchone()
        row("left in stock", [str(number) for number in left])
        row("sales lost", ["30" if number == 95 else "0" for number in left])  # noqa: PLR2004
        return 0 if left == [95, 70] else 1


if __name__ == "__main__":
    sys.exit(main())
