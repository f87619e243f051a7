"""Where a lock file is, and whether it can do its work there: path, file system, boot. By stat and /proc."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import stat
import subprocess
import time
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.url import Address

_LEAST_SQLITE = (3, 37, 0)  # STRICT tables
_WRITE_LOCK_BYTE = 120  # of the -shm file: WAL_WRITE_LOCK, in SQLite's "WAL-mode File Format", section 2.3
_LOCK_FIELDS = ("id", "kind", "advisory", "access", "pid", "inode", "start", "end")  # of a line in /proc/locks

# SQLite's shared memory, our FIFOs and the clock belong to one running kernel. File systems of these types are used by
# one kernel only. The list names local types: a network type that is missing from a list would give two holders.
_LOCAL = {
    *("aufs", "bcachefs", "btrfs", "ecryptfs", "ext2", "ext3", "ext4", "f2fs", "fuse.fuse-overlayfs", "fuseblk"),
    *("hfsplus", "jfs", "nilfs2", "ntfs3", "overlay", "ramfs", "reiserfs", "rootfs", "tmpfs", "ubifs", "udf", "xfs"),
    *("zfs",),
}
# These are known to be shared between machines: `local=yes` does not change that.
_NETWORK = {
    *("9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.grpcfuse"),
    *("fuse.osxfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "gfs2", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"),
    *("ocfs2", "orangefs", "smb3", "smbfs", "virtiofs"),
}


def path_of(address: Address) -> str:
    """The file that a URL names, by an absolute path: `sqlite:///folder/file`, or with four slashes as in SQLAlchemy.

    Raises:
        ConfigurationError: it names a host, or a path that looks relative; shows the right spelling.
    """
    host, path = unquote(address.host).rpartition("@")[2], address.path  # before an @ there may be a password
    if host:
        right = os.path.abspath(os.path.expanduser(host + path) if host[0] in "~." else f"/{host}{path}")
        raise ConfigurationError(
            f"url has the host {host!r}, but a lock file is on this machine: its absolute path stands behind three "
            f"slashes, {_url(right)}"
        )
    if not path.startswith("/") or path == "/":
        raise ConfigurationError("url must name the absolute path of a lock file, as in sqlite:///folder/file")
    if path.startswith("//"):
        return "/" + path.lstrip("/")
    # As root, these would be made in the root folder, by a program that meant its working folder.
    top, _, rest = path[1:].partition("/")
    if not (os.path.isdir(f"/{top}") if rest else os.path.exists(path)):
        raise ConfigurationError(
            f"url names {path!r}, but there is no {top!r} in the root folder. Relative paths are refused, because each "
            f"working folder would have its own locks: write {_url(os.path.abspath(path[1:]))} for a path in this one, "
            f"or {_url('//' + path[1:])} for a new one in the root folder"
        )
    return path


def _url(path: str) -> str:
    return f"sqlite://{quote(path, safe='/@')}"


def check_path(path: str, *, is_local: bool = False) -> None:
    """Refuse at construction a path that cannot work. `is_local` allows a file system of an unknown type.

    Raises:
        ConfigurationError: names the path and the fix.
    """
    if sqlite3.sqlite_version_info < _LEAST_SQLITE:
        least = ".".join(map(str, _LEAST_SQLITE))
        raise ConfigurationError(f"sqlite:// needs SQLite {least} or newer, this Python has {sqlite3.sqlite_version}")
    if os.path.isdir(path):
        example = os.path.join(path, "locks.db")
        raise ConfigurationError(f"url names the folder {path!r}: name a file in it, such as {example}")
    if os.path.exists(path):
        if not os.path.isfile(path):
            raise ConfigurationError(f"url names {path!r}, which is not a regular file")
        if not os.access(path, os.R_OK | os.W_OK):
            raise ConfigurationError(f"url names {path!r}, which this user may not read and write")
        problem = second_path_problem(path)
        if problem is not None:
            raise ConfigurationError(f"url names {path!r}: {problem}")
    folder = _nearest_existing(os.path.dirname(path))
    if not os.path.isdir(folder):
        raise ConfigurationError(f"url names {path!r}, but {folder!r} is not a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigurationError(f"url names {path!r}, but this user may not write to the folder {folder!r}")
    check_file_system(path, file_system_of(folder), is_local=is_local)


def check_file_system(path: str, kind: str | None, *, is_local: bool) -> None:
    """Raise ConfigurationError if other machines may use the same files on a file system of this type."""
    if kind in _NETWORK:
        raise ConfigurationError(
            f"url names {path!r}, which is on a network file system ({kind}), where other machines could not be kept "
            "out: choose a local path, or a store that is made for a network"
        )
    if not (is_local or kind is None or kind in _LOCAL):
        raise ConfigurationError(
            f"url names {path!r}, which is on a file system of the type {kind!r}: holdfast does not know whether other "
            "machines can use the same files there. Choose another path, or add ?local=yes if no other machine can"
        )


def second_path_problem(path: str) -> str | None:
    """Why the file can be reached by a second path, which would give two holders; None if it cannot.

    SQLite keeps the log and the locks of the file beside its path. Processes that use two paths to one file do not see
    each other's tickets. A process that opens the file by the second path finds it here; the first path stays usable
    for the processes that have it open.
    """
    try:
        status = os.stat(path)
    except OSError:
        return None
    if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
        return (
            f"the file has {status.st_nlink} hard links, and processes that use another link would not be excluded: "
            "remove the other links, or use a symbolic link"
        )
    try:
        mounts = _read("/proc/self/mountinfo")
    except OSError:  # macOS has no bind mounts
        return None
    if os.path.realpath(path) in (point for point, _ in _mount_points(mounts)):
        return (
            "the file is a mount point of its own, and processes that use the original path would not be excluded: "
            "mount the folder that contains it"
        )
    return None


def make_folder(folder: str) -> None:
    """Make the folder and those above it that are missing, private to the user whatever the umask is."""
    if not os.path.isdir(folder):
        make_folder(os.path.dirname(folder))
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)


def identity(path: str) -> tuple[int, int] | None:
    """What tells this file from every other that may come to stand at the same path; None: nothing is there."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class Standing:
    """Which files stand at the path: the lock file, and the two beside it by which processes see each other.

    Asked after every transaction, so one look at their folder has to do most times. Every file that comes, goes or is
    renamed there sets the folder's time; a folder that still has the time it had when we looked at each file, and had
    been left alone for a while before that, has had no such change since. The while is because these times come from a
    coarse clock: two changes within one of its ticks would leave one time.
    """

    _SETTLED_NS = 100_000_000  # ticks take 1 ms to 10 ms

    def __init__(self, path: str) -> None:
        self._paths = (path, f"{path}-wal", f"{path}-shm")
        self._folder = os.path.dirname(path)
        self._noted: tuple[tuple[int, int] | None, ...] = ()
        self._settled: tuple[int, ...] | None = None

    def note(self) -> Hashable:
        """Take what stands there now for what should; the answer tells it from all others."""
        self._settled = None
        self._noted = self._look()
        return self._noted

    def is_as_noted(self) -> bool:
        """Nothing was removed or replaced since."""
        folder = self._look_at_folder()
        if folder is not None and folder == self._settled:
            return True
        if self._look() != self._noted:
            return False
        self._settled = folder if self._is_settled(folder) else None
        return True

    def _look(self) -> tuple[tuple[int, int] | None, ...]:
        return tuple(map(identity, self._paths))

    def _look_at_folder(self) -> tuple[int, ...] | None:
        try:
            status = os.stat(self._folder)
        except OSError:
            return None
        return status.st_ctime_ns, status.st_ino, status.st_dev  # unlike its mtime, nobody can set its ctime

    def _is_settled(self, folder: tuple[int, ...] | None) -> bool:
        if folder is None or os.path.islink(self._paths[0]):  # then the file is in some other folder
            return False
        # Some file systems keep times in whole seconds only (ext3, ext4 with small inodes, HFS+). There a later change
        # within the same second would leave the same time.
        return folder[0] % 1_000_000_000 != 0 and time.time_ns() - folder[0] > self._SETTLED_NS


def prepare_new(path: str) -> None:
    """If there is no file, remove the two files that SQLite kept beside a deleted one, and make an empty private file.

    SQLite gives the files beside it the same mode. mknod() makes the file without opening it.
    """
    if not os.path.exists(path):
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path + suffix)
        with contextlib.suppress(
            FileExistsError, PermissionError
        ):  # macOS allows it to root only: SQLite makes it there
            os.mknod(path, stat.S_IFREG | 0o600)


def boot_id() -> str:
    """What tells this run of this kernel, and its clock as seen from here, from every other."""
    try:
        boot = _read("/proc/sys/kernel/random/boot_id").strip()
    except OSError:  # macOS
        command = ["sysctl", "-n", "kern.bootsessionuuid"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603
    try:
        offsets = dict(line.split(maxsplit=1) for line in _read("/proc/self/timens_offsets").splitlines())
    except OSError:  # a kernel without time namespaces
        return boot
    offset = offsets.get("boottime", "0 0").split()
    return boot if offset == ["0", "0"] else f"{boot}+{'.'.join(offset)}"


def file_system_of(folder: str) -> str | None:
    """The type of the file system that this folder is on, where the kernel says so."""
    try:
        mounts = _read("/proc/self/mountinfo")
    except OSError:
        return None
    return file_system_in(mounts, os.path.realpath(folder))


def file_system_in(mounts: str, folder: str) -> str | None:
    """The same, from the text of a mountinfo: the mount with the longest path, of equal ones the last."""
    best, kind = "", None
    for point, kind_there in _mount_points(mounts):
        inside = folder == point or folder.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, kind_there
    return kind


def _mount_points(mounts: str) -> Iterator[tuple[str, str]]:
    """Each mount point and the type of its file system, from the text of a mountinfo."""
    for line in mounts.splitlines():
        # 36 35 98:0 /root /mount/point rw,noatime master:1 - ext4 /dev/sda1 rw: see proc_pid_mountinfo(5)
        before, _, after = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), before.split()[4])
        yield point, after.split()[0]


def write_lock_holder(shm: str) -> int | None:
    """The process that holds SQLite's write lock, from the kernel's list: opening the file to ask would break it."""
    file = identity(shm)
    if file is None:
        return None
    try:
        lines = _read("/proc/locks").splitlines()
    except OSError:
        return None
    for line in lines:
        # 1: POSIX  ADVISORY  WRITE 812 fd:01:1234 120 120; those that wait have an arrow in the second column
        fields = line.split()
        if len(fields) < len(_LOCK_FIELDS) or fields[1] != "POSIX" or fields[3] != "WRITE":
            continue
        inode, start, end = fields[5].rpartition(":")[2], fields[6], fields[7]
        covers = int(start) <= _WRITE_LOCK_BYTE and (end == "EOF" or int(end) >= _WRITE_LOCK_BYTE)
        if inode == str(file[1]) and covers:
            return int(fields[4])
    return None


def _nearest_existing(folder: str) -> str:
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    return folder


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()
