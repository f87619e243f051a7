"""One client in a partition scenario, on a host of its own: it holds locks, waits for them, or takes turns on one.

python client_process.py URL NAMESPACE       executes commands as tests/support/worker.py does, on the host with this
                                             network namespace
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
from pathlib import Path
from typing import Any

import holdfast

sys.path.append(str(Path(__file__).parents[3]))  # as a program
from tests.support.partitions.namespaces import enter_namespace
from tests.support.worker import PR_SET_PDEATHSIG, Answer, Turn, Worker, now

PATIENCE = 25.0  # seconds; less than the caller waits
HOLD = 0.1  # seconds of one turn
CHECK_INTERVAL = 0.01  # seconds between two checks of the leases


class AsyncLockAdapter:
    """A lock of an AsyncClient, on a loop of its own, with the API of a lock for threads."""

    def __init__(self, client: holdfast.AsyncClient, loop: asyncio.AbstractEventLoop, lock: holdfast.AsyncLock) -> None:
        self._client, self._loop, self._lock = client, loop, lock

    @classmethod
    def of(cls, url: str, name: str, **options: Any) -> AsyncLockAdapter:
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        client = holdfast.AsyncClient(url)
        return cls(client, loop, client.lock(name, **options))

    def acquire(self, *, timeout: float) -> AsyncLeaseAdapter | None:
        lease = asyncio.run_coroutine_threadsafe(self._lock.acquire(timeout=timeout), self._loop).result()
        return None if lease is None else AsyncLeaseAdapter(lease, self._loop)


class AsyncLeaseAdapter:
    """A lease of an AsyncClient, with the API of a lease for threads."""

    def __init__(self, lease: holdfast.AsyncLease, loop: asyncio.AbstractEventLoop) -> None:
        self._lease, self._loop = lease, loop
        self.fence = lease.fence

    @property
    def held(self) -> bool:
        return asyncio.run_coroutine_threadsafe(self._is_held(), self._loop).result()

    async def _is_held(self) -> bool:
        return self._lease.held  # read on its own loop

    def release(self) -> None:
        asyncio.run_coroutine_threadsafe(self._lease.release(), self._loop).result()


class ClientProcess(Worker):
    """The commands of a client in a scenario."""

    def __init__(self, url: str) -> None:
        super().__init__(url, None)
        self._url = url
        self._locks: dict[str, holdfast.Lock | AsyncLockAdapter] = {}  # the locks that `hold` acquired
        self._held: dict[str, tuple[float, holdfast.Lease | AsyncLeaseAdapter]] = {}  # with the time of the acquire
        self._last_held: dict[str, float] = {}  # by lock: the last time at which it was held
        self._lost_at: dict[str, float] = {}  # by lock: when its loss was reported
        self._longest_pause = 0.0  # seconds; the longest delay of a check
        self._waiting: dict[str, threading.Thread] = {}
        self._turns: list[Turn] = []
        self._stopped = threading.Event()
        self._turn_thread = threading.Thread(target=self._take_turns, daemon=True)

    def hold(self, locks: Sequence[str], *, ttl: float) -> None:
        """Acquire the locks at intervals, each with its own client: a cut hits each at another point of its renewal.

        Every other client is for asyncio.
        """
        threading.Thread(target=self._check_leases, daemon=True).start()
        for number, lock in enumerate(locks):
            own_lock: holdfast.Lock | AsyncLockAdapter
            if number % 2:
                own_lock = AsyncLockAdapter.of(self._url, lock, ttl=ttl, on_lost=self._on_lost)
            else:
                own_lock = holdfast.Client(self._url).lock(lock, ttl=ttl, on_lost=self._on_lost)
            self._locks[lock] = own_lock
            lease = own_lock.acquire(timeout=PATIENCE)
            assert lease is not None
            self._held[lock] = (now(), lease)
            time.sleep(ttl / 3 / len(locks))

    def lose(self, locks: Sequence[str]) -> Answer:
        """Wait until all losses are reported. Each returned turn ends when a check last found its lease held."""
        end = now() + PATIENCE
        while not self._lost_at.keys() >= set(locks) and now() < end:
            time.sleep(CHECK_INTERVAL)
        turns = {lock: self._turn(lock, self._last_held.get(lock, 0.0)) for lock in locks}
        self._held.clear()
        return {"turns": turns, "lost_at": self._lost_at, "longest_pause": self._longest_pause}

    def queue(self, locks: Sequence[str]) -> None:
        """Wait for the locks, with the clients that held them before."""
        for lock in locks:
            thread = self._waiting[lock] = threading.Thread(target=self._acquire, args=(lock,), daemon=True)
            thread.start()

    def is_queued(self, locks: Sequence[str]) -> Answer:
        """Whether each lock has a waiter, or was acquired already because a holder was paused for too long."""
        return {"queued": all(lock in self._held or self._client.inspect(lock).waiters for lock in locks)}

    def granted(self, locks: Sequence[str]) -> Answer:
        """Return the locks that were acquired, after a wait."""
        end = now() + PATIENCE
        for lock in locks:
            self._waiting[lock].join(max(0.0, end - now()))
        return {"locks": [lock for lock in locks if lock in self._held]}

    def release_all(self, locks: Sequence[str]) -> Answer:
        """Release the locks and return the turns."""
        turns = {}
        for lock in locks:
            turns[lock] = self._turn(lock, now())
            self._held.pop(lock)[1].release()
        return {"turns": turns}

    def begin_turns(self) -> None:
        """Acquire and release one lock repeatedly, in turn with other clients."""
        self._turn_thread.start()

    def await_turn(self, after: float) -> None:
        end = now() + PATIENCE
        while not self._turns or self._turns[-1][1] < after:
            assert now() < end, "no further turn"
            time.sleep(0.01)

    def end_turns(self) -> Answer:
        self._stopped.set()
        self._turn_thread.join(PATIENCE)
        return {"turns": self._turns}

    def keep(self, lock: str) -> None:
        """Renew a lease. A retry may be needed, because the first server may not answer."""
        end = now() + PATIENCE
        while True:
            try:
                return self._leases[lock].renew()
            except holdfast.BackendError:
                if now() > end:
                    raise
                time.sleep(0.05)

    def _turn(self, lock: str, end: float) -> Turn:
        begun, lease = self._held[lock]
        return begun, begun, end, lease.fence

    def _on_lost(self, lease: holdfast.Lease | holdfast.AsyncLease) -> None:
        self._lost_at[lease.name] = now()

    def _check_leases(self) -> None:
        while True:
            sleep_began = now()
            time.sleep(CHECK_INTERVAL)
            self._longest_pause = max(self._longest_pause, now() - sleep_began - CHECK_INTERVAL)
            for lock, (_, lease) in list(self._held.items()):
                checked_at = now()
                if lease.held:
                    self._last_held[lock] = checked_at

    def _acquire(self, lock: str) -> None:
        lease = _acquire_with_retries(self._locks.get(lock) or self._client.lock(lock), PATIENCE)
        if lease is not None:
            self._held[lock] = (now(), lease)

    def _take_turns(self) -> None:
        lock = self._client.lock("elsewhere")
        while not self._stopped.is_set():
            asked = now()
            lease = _acquire_with_retries(lock, 1.0)
            if lease is None:
                continue
            acquired = now()
            time.sleep(HOLD)
            leaving = now()
            if lease.held:
                self._turns.append((asked, acquired, leaving, lease.fence))
            with contextlib.suppress(holdfast.HoldfastError):  # the keeper releases it later
                lease.release()


def _acquire_with_retries(
    lock: holdfast.Lock | AsyncLockAdapter, timeout: float
) -> holdfast.Lease | AsyncLeaseAdapter | None:
    """Acquire, with retries: while servers elect a leader, requests fail."""
    end = now() + timeout
    while (remaining := end - now()) > 0:
        try:
            return lock.acquire(timeout=remaining)
        except holdfast.BackendError:
            time.sleep(0.05)
    return None


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with open(sys.argv[2]) as namespace:
        enter_namespace(namespace.fileno())
    ClientProcess(sys.argv[1]).run()
