"""Locks on files: filelock, fasteners, portalocker, and flock(2), which most of them use.

Each is used as its documentation shows (`with lock:`), with its default options and its default poll interval. A limit
for waiting is set so high that no case reaches it.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any

from benchmarks.contender import Arena, Contender, peer

WAIT_MAX = 600  # seconds; longer than any case takes


class _Folder:
    """A file for each lock. There is nothing to open or close for all of them."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def close(self) -> None:
        pass

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, f"{name}.lock")


class FileLock(_Folder):
    """filelock.FileLock: flock(2) on a file that is opened each time; polls every 50 ms."""

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        made: AbstractContextManager[object] = peer("filelock").FileLock(self._path(name))
        return made


class SoftFileLease(_Folder):
    """filelock.SoftFileLease: a marker file that is refreshed by a thread for each lease; polls every 50 ms."""

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        options = {} if ttl is None else {"lease_duration": ttl}
        return _CheckedLease(peer("filelock").SoftFileLease(self._path(name), **options))


class _CheckedLease:
    """Raises if the lease was lost before its release, as holdfast does, so that the loss is counted."""

    def __init__(self, lease: Any) -> None:
        self._lease = lease

    def __enter__(self) -> None:
        self._lease.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lease.release()
        if self._lease.compromise is not None:
            raise RuntimeError(f"lost: {self._lease.compromise.reason}")


class AsyncFileLock:
    """filelock.AsyncFileLock: the system calls run in asyncio's own thread pool; polls every 50 ms."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def lock(self, name: str, ttl: float | None = None) -> AbstractAsyncContextManager[object]:
        path = os.path.join(self._folder, f"{name}.lock")
        made: AbstractAsyncContextManager[object] = peer("filelock").AsyncFileLock(path)
        return made

    async def close(self) -> None:
        pass


class InterProcessLock(_Folder):
    """fasteners.InterProcessLock: fcntl(2) on a file that is opened each time; polls every 10, 20, … 100 ms."""

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        made: AbstractContextManager[object] = peer("fasteners").InterProcessLock(self._path(name))
        return made


class PortaLock(_Folder):
    """portalocker.Lock: flock(2) on a file that is opened each time; polls every 250 ms."""

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        made: AbstractContextManager[object] = peer("portalocker").Lock(self._path(name), timeout=WAIT_MAX)
        return made


class Flock(_Folder):
    """Only flock(2), on a file that stays open: the cost of the kernel itself from Python."""

    def lock(self, name: str, ttl: float | None = None) -> AbstractContextManager[object]:
        return _Flocked(self._path(name))


class _Flocked:
    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)  # closed with the process

    def __enter__(self) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fcntl.flock(self._fd, fcntl.LOCK_UN)


CONTENDERS = [
    Contender(
        name="filelock",
        arena=Arena.MACHINE,
        threads=FileLock,
        package="filelock",
        imports="import filelock",
        first_use="with filelock.FileLock(sys.argv[1] + '/a.lock'): pass",
        waits="polls, 50 ms",
    ),
    Contender(
        name="filelock lease",
        arena=Arena.MACHINE,
        threads=SoftFileLease,
        package="filelock",
        imports="import filelock",
        first_use="with filelock.SoftFileLease(sys.argv[1] + '/a.lock'): pass",
        waits="polls, 50 ms",
        writes="a file, not synced",
        has_ttl=True,
    ),
    Contender(
        name="filelock asyncio",
        arena=Arena.MACHINE,
        tasks=AsyncFileLock,
        package="filelock",
        imports="import asyncio, filelock",
        first_use="""
async def main():
    async with filelock.AsyncFileLock(sys.argv[1] + '/a.lock'): pass
asyncio.run(main())
""",
        waits="polls, 50 ms",
        baseline_of=("many",),
    ),
    Contender(
        name="fasteners",
        arena=Arena.MACHINE,
        threads=InterProcessLock,
        package="fasteners",
        imports="import fasteners",
        first_use="with fasteners.InterProcessLock(sys.argv[1] + '/a.lock'): pass",
        waits="polls, 10–100 ms",
        threads_exclude=False,  # fcntl(2) locks belong to the process
    ),
    Contender(
        name="portalocker",
        arena=Arena.MACHINE,
        threads=PortaLock,
        package="portalocker",
        imports="import portalocker",
        first_use="with portalocker.Lock(sys.argv[1] + '/a.lock'): pass",
        waits="polls, 250 ms",
    ),
    Contender(
        name="flock(2)",
        is_floor=True,
        arena=Arena.MACHINE,
        threads=Flock,
        imports="import fcntl, os",
        first_use="""
fd = os.open(sys.argv[1] + '/a.lock', os.O_RDWR | os.O_CREAT)
fcntl.flock(fd, fcntl.LOCK_EX)
fcntl.flock(fd, fcntl.LOCK_UN)
""",
        waits="in the kernel",
        order="none promised",
        baseline_of=("contended", "waiters"),
    ),
]
