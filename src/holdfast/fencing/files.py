"""Guards for a file: it is replaced as a whole, and the greatest fence seen is kept in a file beside it.

    files.replace("/srv/app/prices.json", data, fence=lease.fence)

The side file `prices.json.fence` contains the fence as text. All writers lock it (flock) while they check it and
replace the file, so that both are one step. Readers need no lock: they see the old file or the new one.

The fence is durable before the new file is renamed into place. A writer that dies in between leaves the old file and
its own fence: it may try again, and an earlier lease may not.

A process that can open the side file can also lock it and block all writers. So only users with write permission for
the file can open it; for others `newest` raises PermissionError.

All writers must share the flock: local file systems, and NFS since Linux 2.6.12. A writer that is *stopped* during this
step blocks the others, which is necessary, because its rename may still happen. Never delete the side file while a
process may write: without it, every fence is new.
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
_DIGITS = len(str(FENCE_MAX))  # fixed width, so that a single write replaces the old fence


def replace(path: str | os.PathLike[str], data: bytes, *, fence: int) -> None:
    """Replace the content of the file atomically and durably. Its mode is kept; a symbolic link is followed.

    Raises:
        StaleFence: the file was written under a newer fence; it is unchanged.
        ConfigurationError: the side file has foreign content.
    """
    with guarded(path, fence=fence) as target:
        # A fixed name, because there is one writer at a time. The leftover of a dead writer is removed.
        temporary = f"{target}.fence-new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        mode = _mode(target)
        # Private until it has the mode of the file that it replaces.
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o666 if mode is None else 0o600)
        with open(fd, "wb") as file:
            if mode is not None:
                os.fchmod(fd, mode)
            file.write(data)
            file.flush()
            os.fsync(fd)
        os.rename(temporary, target)
        _sync_folder(target)


@contextlib.contextmanager
def guarded(path: str | os.PathLike[str], *, fence: int) -> Iterator[str]:
    """Exclude other writers during the body, for other kinds of writes: to append, or to replace several files.

    The path need not name a file. The fence is stored before the body begins, also if the body fails. The value
    is the guarded file: the target of the path at that time, if it is a symbolic link.

    Raises:
        StaleFence: the file has seen a newer fence; the body is not run.
        ConfigurationError: the side file has foreign content.
    """
    check_fence(fence)
    fd, target = _lock_side_file(path)
    side = side_path(target)
    try:
        newest = _parse(side, os.pread(fd, _DIGITS + 2, 0))
        refuse_stale(target, fence, newest)
        if fence > newest:
            if os.pwrite(fd, b"%0*d\n" % (_DIGITS, fence), 0) != _DIGITS + 1:
                raise OSError("a fence was written only partially")
            os.fsync(fd)
            _sync_folder(side)
        yield target
    finally:
        os.close(fd)  # also unlocks it


def newest(path: str | os.PathLike[str]) -> int:
    """Return the greatest fence that the file has seen; 0 if none."""
    side = side_path(_target(path))
    try:
        with open(side, "rb") as file:
            return _parse(side, file.read(_DIGITS + 2))
    except FileNotFoundError:
        return 0


def side_path(path: str | os.PathLike[str]) -> str:
    """Return the path of the side file, which contains the fence."""
    return f"{os.fspath(path)}.fence"


def _target(path: str | os.PathLike[str]) -> str:
    """Resolve links, because two names of a file must not have two fences."""
    name = os.fspath(path)
    if not isinstance(name, str):
        raise ConfigurationError(f"path must be a str or a path of text, not {name!r}")
    return os.path.realpath(name)


def _lock_side_file(path: str | os.PathLike[str]) -> tuple[int, str]:
    """Lock the side file. Return its descriptor and the file that it belongs to."""
    while True:
        target = _target(path)
        side = side_path(target)
        fd = _open_side_file(side, target)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            # During the wait the side file may have been deleted or replaced: then other writers lock another file. Or
            # the path is a link that has changed: then this is not the fence of its target.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.stat(side)) and _target(path) == target:
                    return fd, target
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _open_side_file(side: str, target: str) -> int:
    """Open the side file. Only users with write permission for the target can open it."""
    mode = _mode(target)
    # For a target that does not exist yet, the umask determines its permissions.
    fd = os.open(side, os.O_RDWR | os.O_CREAT | _FLAGS, 0o660 if mode is None else 0o600 | _write_permissions(mode))
    try:
        status = os.fstat(fd)
        wanted = 0o600 | _write_permissions(status.st_mode if mode is None else mode)
        if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != wanted:
            os.fchmod(fd, wanted)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _write_permissions(mode: int) -> int:
    """Return read and write permission for those that have write permission."""
    writing = mode & 0o222
    return writing | writing << 1


def _mode(target: str) -> int | None:
    try:
        return os.stat(target).st_mode & 0o7777
    except FileNotFoundError:
        return None


def _parse(side: str, text: bytes) -> int:
    if not text.strip(b"\0"):
        return 0  # the writer crashed after it had created or extended the file
    if len(text) != _DIGITS + 1 or not text[:-1].isdigit():
        raise ConfigurationError(f"{side} is not the fence of a file: move it, or guard another path")
    return int(text)


def _sync_folder(path: str) -> None:
    fd = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
