"""A program that takes locks for tests. `WorkerPool` starts it and sends it commands as JSON lines.

It can report the host, program and thread of another process as its own.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

import holdfast


class Holder:
    """The commands are its public methods."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: holdfast.Client | None = None
        self._leases: dict[str, list[holdfast.Lease]] = {}

    def run(self) -> None:
        self._answer({"ready": True})
        for line in sys.stdin:
            arguments = json.loads(line)
            do = arguments.pop("do")
            try:
                answer = getattr(self, do)(**arguments) or {}
            except Exception as error:
                answer = {"error": type(error).__name__, "message": str(error)}
            self._answer(answer)

    def impersonate(self, host: str | None = None, program: str | None = None, thread: str | None = None) -> None:
        """Report another host, program or thread as its own. Must be the first command."""
        if host is not None:
            real = os.uname()
            faked = os.uname_result((real.sysname, host, real.release, real.version, real.machine))
            os.uname = lambda: faked
        sys.argv[0] = program or sys.argv[0]
        threading.current_thread().name = thread or threading.current_thread().name

    def hold(self, lock: str, **options: Any) -> dict[str, Any]:
        """Acquire a lock: with `shared` as a reader, with `limit` as a permit of a semaphore."""
        lease = self._lock(lock, **options).acquire(timeout=0)
        assert lease is not None, f"{lock!r} is busy"
        self._leases.setdefault(lock, []).append(lease)
        return {"fence": lease.fence}

    def hold_many(self, locks: list[str]) -> None:
        for name in locks:
            self.hold(lock=name)

    def wait(self, lock: str, **options: Any) -> None:
        """Wait for a lock on a thread of its own."""

        def take() -> None:
            lease = self._lock(lock, **options).acquire()
            assert lease is not None
            self._leases.setdefault(lock, []).append(lease)

        threading.Thread(target=take, name="waiting", daemon=True).start()

    def hold_and_wait(self, held: str, awaited: str, **options: Any) -> None:
        """On a thread of its own, acquire one lock, and wait for another one as soon as that other lock is busy.

        If the other lock is busy already, return when both locks have a waiter: the other process does the reverse.
        """
        is_held = threading.Event()
        other = self._lock(awaited, **options)

        def take() -> None:
            self.hold(held, **options)
            is_held.set()
            while not other.locked():
                time.sleep(0.01)
            other.acquire()

        is_busy = other.locked()
        threading.Thread(target=take, name="worker", daemon=True).start()
        assert is_held.wait(30)
        while is_busy and self._client and not all(self._client.inspect(lock).waiters for lock in (held, awaited)):
            time.sleep(0.01)

    def release(self, lock: str) -> None:
        """Release all leases of the lock."""
        for lease in self._leases.pop(lock):
            lease.release()

    def release_on_request(self, lock: str, **options: Any) -> dict[str, Any]:
        """Acquire a lock and release it when it is revoked."""
        return self.hold(lock, on_revoke=lambda lease: lease.release(), **options)

    def revoked(self, lock: str) -> dict[str, Any]:
        """Return the fences with a revoke request."""
        return {"revoked": [lease.fence for lease in self._leases[lock] if lease.revoke_requested]}

    def lost(self, lock: str) -> dict[str, Any]:
        """Renew all leases. Return the fences of those that are lost."""
        lost = []
        for lease in self._leases[lock]:
            try:
                lease.renew()
            except holdfast.LockLost:
                lost.append(lease.fence)
        return {"lost": lost}

    def _answer(self, answer: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()

    def _lock(self, name: str, *, shared: bool = False, limit: int | None = None, **options: Any) -> holdfast.Lock:
        self._client = self._client or holdfast.Client(self._url)
        if limit is not None:
            return self._client.semaphore(name, limit, **options)
        if shared:
            return self._client.rwlock(name, **options).read()
        return self._client.lock(name, **options)


if __name__ == "__main__":
    Holder(sys.argv[1]).run()
