"""The environment of a lock file: its path, its file system and the boot of the machine. It uses stat() and /proc."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import stat
import time
from collections.abc import Hashable, Iterator

from holdfast.errors import ConfigurationError

_LEAST_SQLITE = (3, 37, 0)  # for STRICT tables
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


def check_path(path: str, *, is_local: bool = False) -> None:
    """Refuse a path that cannot work. `is_local` allows a file system of an unknown type.

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
            f"url names {path!r}, which is on a network file system ({kind}), where other machines could not be "
            "excluded: choose a local path, or a store that is made for a network"
        )
    if not (is_local or kind is None or kind in _LOCAL):
        raise ConfigurationError(
            f"url names {path!r}, which is on a file system of the type {kind!r}: holdfast does not know whether other "
            "machines can use the same files there. Choose another path, or add ?local=yes if no other machine can"
        )


def second_path_problem(path: str) -> str | None:
    """Why the file can be reached by a second path, which would give two holders; None if it cannot.

    SQLite keeps the log and the locks of the file beside its path. Processes that use two paths to one file do not see
    each other's tickets. The file is refused to a process that opens it by the second path. Processes that have it open
    by the first path can still use it.
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
    if os.path.realpath(path) in (point for point, _ in _mount_points(_mounts())):
        return (
            "the file is a mount point of its own, and processes that use the original path would not be excluded: "
            "mount the folder that contains it"
        )
    return None


def make_folder(folder: str) -> None:
    """Make the folder and its missing parents, private to the user regardless of the umask."""
    if not os.path.isdir(folder):
        make_folder(os.path.dirname(folder))
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)


def inode_of(path: str) -> tuple[int, int] | None:
    """Device and inode, which identify the file at this path; None if there is no file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class FileIdentity:
    """The identity of the files at the path: the lock file, and the two files by which processes see each other.

    It is checked after every transaction, so most checks must be one stat() of the folder. Creating, removing or
    renaming a file sets the folder's change time. If that time is unchanged since we checked each file, and was settled
    then, no file was replaced since. It is settled 100 ms after a change, because it comes from a coarse clock: two
    changes within one tick of that clock have the same time.
    """

    _SETTLED_NS = 100_000_000  # a tick takes 1 ms to 10 ms

    def __init__(self, path: str) -> None:
        self._paths = (path, f"{path}-wal", f"{path}-shm")
        self._folder = os.path.dirname(path)
        self._recorded: tuple[tuple[int, int] | None, ...] = ()
        self._settled: tuple[int, ...] | None = None

    def record(self) -> Hashable:
        """Record the files that are at the path now. The result identifies them."""
        self._settled = None
        self._recorded = self._inodes()
        return self._recorded

    def is_unchanged(self) -> bool:
        """No file was removed or replaced since `record`."""
        folder = self._folder_status()
        if folder is not None and folder == self._settled:
            return True
        if self._inodes() != self._recorded:
            return False
        self._settled = folder if self._is_settled(folder) else None
        return True

    def _inodes(self) -> tuple[tuple[int, int] | None, ...]:
        return tuple(map(inode_of, self._paths))

    def _folder_status(self) -> tuple[int, ...] | None:
        try:
            status = os.stat(self._folder)
        except OSError:
            return None
        return status.st_ctime_ns, status.st_ino, status.st_dev  # unlike the mtime, no program can set the ctime

    def _is_settled(self, folder: tuple[int, ...] | None) -> bool:
        if folder is None or os.path.islink(self._paths[0]):  # then the file is in another folder
            return False
        # Some file systems store times in whole seconds only (ext3, ext4 with small inodes, HFS+). There a later change
        # within the same second would have the same time.
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
        ):  # on macOS only root may; there SQLite creates the file
            os.mknod(path, stat.S_IFREG | 0o600)


def boot_id() -> str:
    """Identifies this boot of the machine, and the offset of its clock in this time namespace."""
    try:
        boot = _read("/proc/sys/kernel/random/boot_id").strip()
    except OSError:  # macOS
        import subprocess  # 4 ms, which other systems do not spend

        command = ["sysctl", "-n", "kern.bootsessionuuid"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603
    try:
        offsets = dict(line.split(maxsplit=1) for line in _read("/proc/self/timens_offsets").splitlines())
    except OSError:  # a kernel without time namespaces
        return boot
    offset = offsets.get("boottime", "0 0").split()
    return boot if offset == ["0", "0"] else f"{boot}+{'.'.join(offset)}"


def file_system_of(folder: str) -> str | None:
    """The type of the file system of this folder; None where the kernel does not report it."""
    return file_system_in(_mounts(), os.path.realpath(folder))


def file_system_in(mounts: str, folder: str) -> str | None:
    """The same, from the text of a mountinfo. The mount with the longest path counts; of several there, the last."""
    best, kind = "", None
    for point, kind_of_mount in _mount_points(mounts):
        inside = folder == point or folder.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, kind_of_mount
    return kind


def _mounts() -> str:
    """The text of mountinfo of this process; "" where the kernel has none, as on macOS, which has no bind mounts."""
    try:
        return _read("/proc/self/mountinfo")
    except OSError:
        return ""


def _mount_points(mounts: str) -> Iterator[tuple[str, str]]:
    """Each mount point and the type of its file system, from the text of a mountinfo."""
    for line in mounts.splitlines():
        # 36 35 98:0 /root /mount/point rw,noatime master:1 - ext4 /dev/sda1 rw: see proc_pid_mountinfo(5)
        before, _, after = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), before.split()[4])
        yield point, after.split()[0]


def write_lock_holder(shm: str) -> int | None:
    """The process that holds SQLite's write lock, from /proc/locks: opening and closing the file would drop it."""
    inode = inode_of(shm)
    if inode is None:
        return None
    try:
        lines = _read("/proc/locks").splitlines()
    except OSError:
        return None
    for line in lines:
        # 1: POSIX  ADVISORY  WRITE 812 fd:01:1234 120 120; a blocked request has an arrow in the second column
        fields = line.split()
        if len(fields) < len(_LOCK_FIELDS) or fields[1] != "POSIX" or fields[3] != "WRITE":
            continue
        number, start, end = fields[5].rpartition(":")[2], fields[6], fields[7]
        covers = int(start) <= _WRITE_LOCK_BYTE and (end == "EOF" or int(end) >= _WRITE_LOCK_BYTE)
        if number == str(inode[1]) and covers:
            return int(fields[4])
    return None


def _nearest_existing(folder: str) -> str:
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    return folder


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()
