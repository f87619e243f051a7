"""Guards for a file: it is replaced as a whole, and the greatest fence seen is kept in a file beside it.

    files.replace("/srv/app/prices.json", data, fence=lease.fence)

Beside `prices.json` there is `prices.json.fence`: the fence as text, and what all writers lock (flock) while they check
it and replace the file, so that the two are one step. Readers need no lock: they see the old file or the new one.

The order on disk: the fence is safe before the new file gets its name. A writer that dies in between has left the old
file and its own fence: it may try again, and one that came before it may not.

For file systems whose flock all writers share: local ones, and NFS since Linux 2.6.12. A writer that is *stopped*
within this step keeps the others waiting, as it has to: its rename may still come. Never delete the side file while
somebody may write; without it, every fence is new.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from holdfast.errors import ConfigurationError
from holdfast.fencing.values import FENCE_MAX, check_fence, refuse_stale

_DIGITS = len(str(FENCE_MAX))  # written at this width, so that one write in place is all there is to it


def replace(path: str | os.PathLike[str], data: bytes, *, fence: int) -> None:
    """Give the file this content, all of it or nothing, durably. Its mode is kept; a symbolic link is followed.

    Raises:
        StaleFence: the file has been written under a newer fence; it is as it was.
        ConfigurationError: the file beside it is not one of ours.
    """
    with guarded(path, fence=fence):
        target = _target(path)
        # One name for all: only one writer is here at a time, and what a dead one has left is written over.
        temporary = f"{target}.fence-new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(fd, os.stat(target).st_mode & 0o7777)
            _write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, target)
        _sync_folder(target)


@contextlib.contextmanager
def guarded(path: str | os.PathLike[str], *, fence: int) -> Iterator[None]:
    """Be the only writer in the body, for writes of another kind: to append, or to replace several files at once.

    The path need not be that of a file. The fence is remembered before the body begins, also if that fails then.

    Raises:
        StaleFence: a newer fence was here; the body is not entered.
        ConfigurationError: the file beside it is not one of ours.
    """
    target = _target(path)
    side = side_path(target)
    check_fence(fence)
    fd = _locked(side)
    try:
        newest = _parse(side, os.pread(fd, _DIGITS + 2, 0))
        refuse_stale(target, fence, newest)
        if fence > newest:
            _write_at_start(fd, b"%0*d\n" % (_DIGITS, fence))
            os.fsync(fd)
            _sync_folder(side)
        yield
    finally:
        os.close(fd)  # which also unlocks it


def newest(path: str | os.PathLike[str]) -> int:
    """The greatest fence that the file has seen; 0 if none."""
    side = side_path(_target(path))
    try:
        with open(side, "rb") as file:
            return _parse(side, file.read(_DIGITS + 2))
    except FileNotFoundError:
        return 0


def side_path(path: str | os.PathLike[str]) -> str:
    """Where the fence of this file is kept."""
    return f"{os.fspath(path)}.fence"


def _target(path: str | os.PathLike[str]) -> str:
    """The file itself: two names for it must not have two fences."""
    name = os.fspath(path)
    if not isinstance(name, str):
        raise ConfigurationError(f"path must be a str or a path of text, not {name!r}")
    return os.path.realpath(name)


def _locked(side: str) -> int:
    """A descriptor of the side file, locked by nobody else: other threads open their own."""
    while True:
        fd = os.open(side, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            # Somebody may have deleted or replaced it while we waited: then others lock another file by now.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.stat(side)):
                    return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _parse(side: str, text: bytes) -> int:
    if not text.strip(b"\0"):
        return 0  # of a writer that came no further: made, or made longer, and nothing written when the power went
    if len(text) != _DIGITS + 1 or not text[:-1].isdigit():
        raise ConfigurationError(f"{side} is not the fence of a file: move it away, or guard another path")
    return int(text)


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _write_at_start(fd: int, data: bytes) -> None:
    if os.pwrite(fd, data, 0) != len(data):
        raise OSError("the disk took only a part of a fence")


def _sync_folder(path: str) -> None:
    fd = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
