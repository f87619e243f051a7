"""Guards for a file: it is replaced as a whole, and the greatest fence seen is kept in a file beside it.

    files.replace("/srv/app/prices.json", data, fence=lease.fence)

Beside `prices.json` there is `prices.json.fence`: the fence as text, and what all writers lock (flock) while they check
it and replace the file, so that the two are one step. Readers need no lock: they see the old file or the new one.

The order on disk: the fence is safe before the new file gets its name. A writer that dies in between has left the old
file and its own fence: it may try again, and one that came before it may not.

A client that can open the side file can also lock it and stop all writers, so it belongs to those that may write the
file: whoever may only read the file cannot open it, and `newest` raises PermissionError there.

For file systems whose flock all writers share: local ones, and NFS since Linux 2.6.12. A writer that is *stopped*
within this step keeps the others waiting, as it has to: its rename may still come. Never delete the side file while
somebody may write; without it, every fence is new.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterator

from holdfast.errors import ConfigurationError
from holdfast.fencing.values import FENCE_MAX, check_fence, refuse_stale

try:
    import fcntl
except ModuleNotFoundError:
    raise ImportError(f"holdfast.fencing.files needs flock(), which {sys.platform} does not have") from None

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW
_DIGITS = len(str(FENCE_MAX))  # written at this width, so that one write in place is all there is to it


def replace(path: str | os.PathLike[str], data: bytes, *, fence: int) -> None:
    """Give the file this content, all of it or nothing, durably. Its mode is kept; a symbolic link is followed.

    Raises:
        StaleFence: the file has been written under a newer fence; it is as it was.
        ConfigurationError: the file beside it is not one of ours.
    """
    with guarded(path, fence=fence) as target:
        # One name for all: only one writer is here at a time, and what a dead one has left is written over.
        temporary = f"{target}.fence-new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        mode = _mode(target)
        # Private until it has the mode of the file that it replaces.
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o666 if mode is None else 0o600)
        try:
            if mode is not None:
                os.fchmod(fd, mode)
            _write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, target)
        _sync_folder(target)


@contextlib.contextmanager
def guarded(path: str | os.PathLike[str], *, fence: int) -> Iterator[str]:
    """Be the only writer in the body, for writes of another kind: to append, or to replace several files at once.

    The path need not be that of a file. The fence is remembered before the body begins, also if that fails then. The
    value is the file that is guarded: where the path led then, should it be a symbolic link that changes meanwhile.

    Raises:
        StaleFence: a newer fence was here; the body is not entered.
        ConfigurationError: the file beside it is not one of ours.
    """
    check_fence(fence)
    fd, target = _locked(path)
    side = side_path(target)
    try:
        newest = _parse(side, os.pread(fd, _DIGITS + 2, 0))
        refuse_stale(target, fence, newest)
        if fence > newest:
            _write_at_start(fd, b"%0*d\n" % (_DIGITS, fence))
            os.fsync(fd)
            _sync_folder(side)
        yield target
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


def _locked(path: str | os.PathLike[str]) -> tuple[int, str]:
    """A descriptor of the side file, which no one else has locked, and the file that it is for."""
    while True:
        target = _target(path)
        side = side_path(target)
        fd = _opened(side, target)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            # While we waited the side file may have been deleted or replaced: then others lock another file by now. Or
            # the path may be a link that leads elsewhere by now: then this is not the fence of what it names.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.stat(side)) and _target(path) == target:
                    return fd, target
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _opened(side: str, target: str) -> int:
    """The side file, which no one can open who may not write the file that it is for."""
    mode = _mode(target)
    # Of a file that does not exist yet, the umask says which of these it will have.
    fd = os.open(side, os.O_RDWR | os.O_CREAT | _FLAGS, 0o660 if mode is None else 0o600 | _who_write(mode))
    try:
        has = os.fstat(fd)
        mine = 0o600 | _who_write(has.st_mode if mode is None else mode)
        if has.st_uid == os.geteuid() and stat.S_IMODE(has.st_mode) != mine:
            os.fchmod(fd, mine)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _who_write(mode: int) -> int:
    """Reading and writing, for those that may write."""
    writing = mode & 0o222
    return writing | writing << 1


def _mode(target: str) -> int | None:
    try:
        return os.stat(target).st_mode & 0o7777
    except FileNotFoundError:
        return None


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
