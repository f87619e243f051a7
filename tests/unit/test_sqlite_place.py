"""Where a lock file may be: not on a network file system, whatever its mount point is called."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.backends.sqlite import place

MOUNTS = r"""
22 1 252:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:26 / /home rw,nosuid shared:9 - nfs4 files:/home rw,vers=4.2
31 30 0:27 / /home/my\040own rw shared:10 - tmpfs tmpfs rw
32 22 0:28 / /srv/büro rw - cifs //files/office rw
33 22 0:29 / /mnt rw - fuse.sshfs me@there: rw
34 22 252:1 / /mnt rw - xfs /dev/vdb rw
""".strip()


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", "ext4"),
        ("/var/lib", "ext4"),
        ("/home", "nfs4"),
        ("/home/me", "nfs4"),
        ("/homeless", "ext4"),
        ("/home/my own", "tmpfs"),
        ("/home/my own/state", "tmpfs"),
        ("/srv/büro/x", "cifs"),
        ("/mnt/x", "xfs"),
    ],
)
def test_a_folder_is_on_the_nearest_mount_above_it(folder: str, kind: str) -> None:
    assert place.file_system_in(MOUNTS, folder) == kind


def test_network_file_systems_are_known_and_local_ones_are_not_taken_for_them() -> None:
    assert all(map(place.is_network, ["nfs", "nfs4", "cifs", "fuse.sshfs", "9p"]))
    assert not any(map(place.is_network, ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "fuseblk", None]))


def test_the_kernel_says_what_a_folder_is_on(tmp_path: Path) -> None:
    assert place.file_system_of(str(tmp_path)) == place.file_system_in(
        Path("/proc/self/mountinfo").read_text(), os.path.realpath(tmp_path)
    )
    assert place.file_system_of("/proc") == "proc"


def test_the_boot_id_stays_the_same() -> None:
    assert place.boot_id() == place.boot_id() != ""


def test_nobody_holds_the_write_lock_of_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert place.write_lock_holder(str(tmp_path / "locks.db-shm")) is None
    (tmp_path / "locks.db-shm").touch()
    assert place.write_lock_holder(str(tmp_path / "locks.db-shm")) is None
