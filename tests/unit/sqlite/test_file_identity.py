"""Hazard: a replaced lock file goes unnoticed, because only its folder was checked."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.backends.sqlite.io.file_system import FileIdentity
from tests.support.processes import eventually


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    for suffix in ("", "-wal", "-shm"):
        (folder / f"locks.db{suffix}").touch()
    return folder / "locks.db"


def settled(path: Path) -> FileIdentity:
    """An identity that checks only the folder from now on."""
    identity = FileIdentity(str(path))
    identity.record()
    eventually(lambda: identity.is_unchanged() and identity._settled is not None)
    return identity


def replace(path: Path) -> None:
    path.with_name("other").touch()
    path.with_name("other").rename(path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "removed": lambda path: path.unlink(),
    "replaced": replace,
    "renamed": lambda path: path.rename(f"{path}.old"),
    "its log removed": lambda path: Path(f"{path}-wal").unlink(),
    "its log replaced": lambda path: replace(Path(f"{path}-wal")),
    "its index removed": lambda path: Path(f"{path}-shm").unlink(),
    "its folder renamed": lambda path: path.parent.rename(f"{path.parent}.old"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("make", [settled, None], ids=["settled", "fresh"])
def test_every_replacement_is_detected(path: Path, make: Callable[[Path], FileIdentity] | None, change: str) -> None:
    if make is not None:
        identity = make(path)
    else:
        identity = FileIdentity(str(path))
        identity.record()
    assert identity.is_unchanged()

    CHANGES[change](path)

    assert not identity.is_unchanged()


def test_other_files_in_the_folder_may_change(path: Path) -> None:
    identity = settled(path)

    path.with_name("other").touch()

    assert identity.is_unchanged()
    assert identity._settled is None  # until the folder is settled again, each file is checked


def test_a_file_behind_a_symbolic_link_is_checked_each_time(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(path)
    identity = FileIdentity(str(link))
    identity.record()
    eventually(lambda: time.time_ns() - os.stat(tmp_path).st_ctime_ns > 2 * FileIdentity._SETTLED_NS)
    assert identity.is_unchanged()

    replace(path)

    assert not identity.is_unchanged()
