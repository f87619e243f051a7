"""Hazard: a lock file is on a network file system, because any folder can be a mount point of one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.backends.sqlite.config import config_of
from holdfast.backends.sqlite.io import file_system
from holdfast.errors import ConfigurationError
from holdfast.url import parse

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
    assert file_system.file_system_in(MOUNTS, folder) == kind


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///usr/locks.db", "/usr/locks.db"),
        ("sqlite:////usr/locks.db", "/usr/locks.db"),  # the form of SQLAlchemy
        ("sqlite:////new-in-the-root-folder/locks.db", "/new-in-the-root-folder/locks.db"),
        ("sqlite:////new.db", "/new.db"),
        ("sqlite:///usr/with%20blank.db", "/usr/with blank.db"),
    ],
)
def test_a_url_has_an_absolute_path_after_three_or_four_slashes(url: str, path: str) -> None:
    assert config_of(parse(url)).path == path


def refusal(kind: str | None, *, is_local: bool) -> str | None:
    try:
        file_system.check_file_system("/folder/locks.db", kind, is_local=is_local)
    except ConfigurationError as error:
        return str(error)
    return None


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", "fuseblk", None])
def test_a_local_file_system_is_accepted(kind: str | None) -> None:
    assert refusal(kind, is_local=False) is None


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "fuse.sshfs", "9p", "ocfs2"])
def test_a_network_file_system_is_refused_even_with_local_yes(kind: str) -> None:
    for is_local in (False, True):
        assert "network file system" in (refusal(kind, is_local=is_local) or "")


def test_a_file_system_of_unknown_type_is_refused_without_local_yes() -> None:
    assert "?local=yes" in (refusal("fuse.newfs", is_local=False) or "")
    assert refusal("fuse.newfs", is_local=True) is None


def test_the_file_system_of_a_folder_is_read_from_the_kernel(tmp_path: Path) -> None:
    assert file_system.file_system_of(str(tmp_path)) == file_system.file_system_in(
        Path("/proc/self/mountinfo").read_text(), os.path.realpath(tmp_path)
    )
    assert file_system.file_system_of("/proc") == "proc"


def test_the_boot_id_is_stable() -> None:
    assert file_system.boot_id() == file_system.boot_id() != ""


def test_no_process_holds_the_write_lock_of_a_missing_file(tmp_path: Path) -> None:
    assert file_system.write_lock_holder(str(tmp_path / "locks.db-shm")) is None
    (tmp_path / "locks.db-shm").touch()
    assert file_system.write_lock_holder(str(tmp_path / "locks.db-shm")) is None
