"""One process in a partition drill, on a host of its own: it holds locks, waits for them, or takes turns at one.

python party.py URL       told what to do as tests/support/worker.py is; tests/ has to be on the path
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import holdfast
from tests.support.worker import PR_SET_PDEATHSIG, Answer, Turn, Worker, now

PATIENCE = 25.0  # seconds: less than who asks has
HOLD = 0.01  # seconds of one turn
BEAT = 0.005  # seconds between two looks at what is held


class Awaited:
    """A lock of a client for asyncio, on a loop of its own, with the face of one for threads."""

    def __init__(self, client: holdfast.AsyncClient, loop: asyncio.AbstractEventLoop, lock: holdfast.AsyncLock) -> None:
        self._client, self._loop, self._lock = client, loop, lock

    @classmethod
    def of(cls, url: str, name: str, **options: Any) -> Awaited:
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        client = holdfast.AsyncClient(url)
        return cls(client, loop, client.lock(name, **options))

    def acquire(self, *, timeout: float) -> AwaitedLease | None:
        lease = asyncio.run_coroutine_threadsafe(self._lock.acquire(timeout=timeout), self._loop).result()
        return None if lease is None else AwaitedLease(lease, self._loop)


class AwaitedLease:
    """Its lease."""

    def __init__(self, lease: holdfast.AsyncLease, loop: asyncio.AbstractEventLoop) -> None:
        self._lease, self._loop = lease, loop
        self.fence = lease.fence

    @property
    def held(self) -> bool:
        return asyncio.run_coroutine_threadsafe(self._look(), self._loop).result()

    async def _look(self) -> bool:
        return self._lease.held  # asked on its loop, to which it belongs

    def release(self) -> None:
        asyncio.run_coroutine_threadsafe(self._lease.release(), self._loop).result()


class SimParty(Worker):
    """What one side does in a drill."""

    def __init__(self, url: str) -> None:
        super().__init__(url, None)
        self._url = url
        self._locks: dict[str, holdfast.Lock | Awaited] = {}  # of those who have held one
        self._begun: dict[str, tuple[float, holdfast.Lease | AwaitedLease]] = {}  # when it was acquired
        self._believed: dict[str, float] = {}  # by lock: when it was last seen to be held
        self._told_at: dict[str, float] = {}  # by lock: when its loss was told
        self._stood_still = 0.0  # seconds: how late a look was, at most
        self._waiting: dict[str, threading.Thread] = {}
        self._turns: list[Turn] = []
        self._stopped = threading.Event()
        self._taking = threading.Thread(target=self._take_turns, daemon=True)

    def hold(self, locks: Sequence[str], *, ttl: float) -> None:
        """Take them, each with a client of its own: what happens next comes at another moment of each one's renewal.

        Every other client is for asyncio.
        """
        threading.Thread(target=self._beat, daemon=True).start()
        for number, lock in enumerate(locks):
            mine: holdfast.Lock | Awaited
            if number % 2:
                mine = Awaited.of(self._url, lock, ttl=ttl, on_lost=self._note)
            else:
                mine = holdfast.Client(self._url).lock(lock, ttl=ttl, on_lost=self._note)
            self._locks[lock] = mine
            lease = mine.acquire(timeout=PATIENCE)
            assert lease is not None
            self._begun[lock] = (now(), lease)
            time.sleep(ttl / 3 / len(locks))

    def lose(self, locks: Sequence[str]) -> Answer:
        """The turns that it had, each until it was last seen to be held, when the loss of all of them has been told."""
        end = now() + PATIENCE
        while not self._told_at.keys() >= set(locks) and now() < end:
            time.sleep(BEAT)
        turns = {lock: self._turn(lock, self._believed.get(lock, 0.0)) for lock in locks}
        self._begun.clear()
        return {"turns": turns, "told": self._told_at, "stood_still": self._stood_still}

    def queue(self, locks: Sequence[str]) -> None:
        """Wait for them, with the clients that it has held them with."""
        for lock in locks:
            thread = self._waiting[lock] = threading.Thread(target=self._take, args=(lock,), daemon=True)
            thread.start()

    def is_queued(self, locks: Sequence[str]) -> Answer:
        """All of them have somebody who waits, or is in already, should a holder have stood still for too long."""
        return {"queued": all(lock in self._begun or self._client.inspect(lock).waiters for lock in locks)}

    def granted(self, locks: Sequence[str]) -> Answer:
        """Those that it has got by now, or after a while."""
        end = now() + PATIENCE
        for lock in locks:
            self._waiting[lock].join(max(0.0, end - now()))
        return {"locks": [lock for lock in locks if lock in self._begun]}

    def give_back(self, locks: Sequence[str]) -> Answer:
        """The turns that it had."""
        turns = {}
        for lock in locks:
            turns[lock] = self._turn(lock, now())
            self._begun.pop(lock)[1].release()
        return {"turns": turns}

    def begin_turns(self) -> None:
        """Take one lock again and again, together with others of this kind."""
        self._taking.start()

    def await_turn(self, after: float) -> None:
        end = now() + PATIENCE
        while not self._turns or self._turns[-1][1] < after:
            assert now() < end, "no turn came"
            time.sleep(0.01)

    def end_turns(self) -> Answer:
        self._stopped.set()
        self._taking.join(PATIENCE)
        return {"turns": self._turns}

    def keep(self, lock: str) -> None:
        """Renew what it holds. It may have to ask several servers, and be told that the first gave no answer."""
        end = now() + PATIENCE
        while True:
            try:
                return self._leases[lock].renew()
            except holdfast.BackendError:
                if now() > end:
                    raise
                time.sleep(0.05)

    def _turn(self, lock: str, end: float) -> Turn:
        begun, lease = self._begun[lock]
        return begun, begun, end, lease.fence

    def _note(self, lease: holdfast.Lease | holdfast.AsyncLease) -> None:
        self._told_at[lease.name] = now()

    def _beat(self) -> None:
        while True:
            slept = now()
            time.sleep(BEAT)
            self._stood_still = max(self._stood_still, now() - slept - BEAT)
            for lock, (_, lease) in list(self._begun.items()):
                looked = now()
                if lease.held:
                    self._believed[lock] = looked

    def _take(self, lock: str) -> None:
        lease = _stubbornly(self._locks.get(lock) or self._client.lock(lock), PATIENCE)
        if lease is not None:
            self._begun[lock] = (now(), lease)

    def _take_turns(self) -> None:
        lock = self._client.lock("elsewhere")
        while not self._stopped.is_set():
            asked = now()
            lease = _stubbornly(lock, 1.0)
            if lease is None:
                continue
            acquired = now()
            time.sleep(HOLD)
            leaving = now()
            if lease.held:
                self._turns.append((asked, acquired, leaving, lease.fence))
            with contextlib.suppress(holdfast.HoldfastError):  # the keeper gives it back
                lease.release()


def _stubbornly(lock: holdfast.Lock | Awaited, backoff: float) -> holdfast.Lease | AwaitedLease | None:
    """While servers elect a leader, none of them can be asked, and who asks hears of it."""
    end = now() + backoff
    while (left := end - now()) > 0:
        try:
            return lock.acquire(timeout=left)
        except holdfast.BackendError:
            time.sleep(0.05)
    return None


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    SimParty(sys.argv[1]).run()
