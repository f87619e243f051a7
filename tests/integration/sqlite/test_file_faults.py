"""Hazard: an unusable file (read-only, full, damaged, of another program, held by a stopped process) looks like a busy
lock, gives an error of sqlite3 without advice, or is damaged further.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import shutil
import socket
import sqlite3
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import holdfast
from tests.integration.sqlite.conftest import Observer, Store
from tests.support.intervals import report
from tests.support.processes import PATIENCE, Refused, Worker, WorkerPool, now

# ── permissions, as a user that is not root ──────────────────────────────────────────────────────────────────────────


@pytest.fixture
def user_store(tmp_path: Path) -> Iterator[Store]:
    """A store in a folder of the user `nobody`, or of this user if it is not root; tmp_path itself may be private."""
    folder = tempfile.mkdtemp(prefix="holdfast-test-")
    try:
        if os.geteuid() == 0:
            os.chown(folder, 65534, 65534)
        yield Store(Path(folder) / "locks.db")
    finally:
        os.chmod(folder, stat.S_IRWXU)
        shutil.rmtree(folder)


@pytest.fixture
def nobody(user_store: Store, pool: WorkerPool) -> Worker:
    """A worker that is not root and has created the lock file; it ends before its folder is removed."""
    worker = pool.start(user_store.url)
    worker.call("become_nobody")
    worker.call("acquire", lock="one")
    worker.call("release", lock="one")
    worker.call("open", url=user_store.url)
    return worker


@pytest.mark.parametrize(
    ("suffix", "mode"),
    [("", 0o400), ("", 0o000), ("-sessions", 0o500), ("-sessions", 0o000), ("/..", 0o500), ("/..", 0o000)],
    ids=["read-only file", "secret file", "read-only sessions", "secret sessions", "read-only folder", "secret folder"],
)
def test_errors_name_a_path_that_this_user_may_not_write(
    suffix: str, mode: int, nobody: Worker, user_store: Store
) -> None:
    target = user_store.path.parent if suffix == "/.." else Path(f"{user_store.path}{suffix}")
    os.chmod(target, mode)

    with pytest.raises(Refused) as refused:
        nobody.call("open", url=user_store.url)
        nobody.call("acquire", lock="one", timeout=0)

    report(str(refused.value))
    assert refused.value.kind in {"ConfigurationError", "BackendUnavailable"}
    assert str(user_store.path) in refused.value.message
    assert "unable to open" not in refused.value.message


def test_a_folder_that_becomes_read_only_does_not_break_an_open_store(nobody: Worker, user_store: Store) -> None:
    nobody.call("acquire", lock="one")

    os.chmod(user_store.path.parent, 0o500)

    nobody.call("renew", lock="one")
    nobody.call("check", lock="one")
    nobody.call("release", lock="one")


# ── a full disk ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def small_disk(pool: WorkerPool, tmp_path: Path) -> Worker:
    """A worker with a disk of 1 MB at tmp_path/disk. The mount is visible to the worker only, and ends with it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=1m tmpfs "$0" && exec "$@"', str(disk)]
    probe = subprocess.run([*mount, "true"], check=False, capture_output=True, text=True)
    if probe.returncode != 0:
        reason = f"cannot mount a small disk: {probe.stderr.strip()}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return pool.start(f"sqlite://{disk}/locks.db", under=mount)


def test_errors_name_a_disk_that_is_full_at_the_first_use_until_there_is_space(
    small_disk: Worker, tmp_path: Path
) -> None:
    small_disk.call("fill_disk", path=f"{tmp_path}/disk/ballast")

    with pytest.raises(Refused) as refused:
        small_disk.call("acquire", lock="one", timeout=0)

    report(str(refused.value))
    assert refused.value.kind == "BackendUnavailable"
    assert "full" in refused.value.message.lower() or "no space" in refused.value.message.lower()
    small_disk.call("free_disk", path=f"{tmp_path}/disk/ballast")
    small_disk.call("acquire", lock="one", timeout=5)
    small_disk.call("release", lock="one")


def test_errors_name_a_disk_that_becomes_full_until_there_is_space(small_disk: Worker, tmp_path: Path) -> None:
    small_disk.call("acquire", lock="held")
    small_disk.call("fill_disk", path=f"{tmp_path}/disk/ballast")

    with pytest.raises(Refused) as refused:
        for number in range(1000):  # the log has some space left
            small_disk.call("acquire", lock=f"lock-{number}", timeout=0)

    report(f"after {number} locks: {refused.value}")
    assert refused.value.kind == "BackendUnavailable"
    assert "full" in refused.value.message.lower() or "no space" in refused.value.message.lower()
    small_disk.call("check", lock="held")
    small_disk.call("free_disk", path=f"{tmp_path}/disk/ballast")
    small_disk.call("acquire", lock="one", timeout=5)
    small_disk.call("renew", lock="held")
    small_disk.call("release", lock="held")
    small_disk.call("close")


# ── modes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_new_files_and_folders_are_private_with_any_umask(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "by" / "us"
    umask = os.umask(0)
    try:
        with holdfast.Client(f"sqlite://{folder}/locks.db") as client, client.lock("one"):
            modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in (tmp_path / "made").rglob("*")}
    finally:
        os.umask(umask)

    report(str({str(path.relative_to(tmp_path)): oct(mode) for path, mode in modes.items()}))
    assert {path.name for path in modes} >= {
        "by",
        "us",
        "locks.db",
        "locks.db-wal",
        "locks.db-shm",
        "locks.db-sessions",
    }
    assert all(mode & 0o077 == 0 for mode in modes.values())


def test_an_error_names_the_flock_of_another_program_on_the_folder(store: Store) -> None:
    folder = os.open(store.path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        with holdfast.Client(store.url) as client, pytest.raises(holdfast.BackendUnavailable, match="flock"):
            client.lock("one").acquire(timeout=0)
    finally:
        os.close(folder)


# ── files of other programs among the sessions ───────────────────────────────────────────────────────────────────────


def test_files_of_other_programs_among_the_sessions_are_kept_and_block_no_client(store: Store) -> None:
    _make_lock_file(store)
    store.query("UPDATE tickets SET session = 'another boot' WHERE name = ''")
    (store.sessions / ".keep").touch()
    os.mkfifo(store.sessions / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(store.sessions / "agent"))

        with holdfast.Client(store.url) as client, client.lock("one", timeout=0) as lease:
            lease.check()

    assert {path.name for path in store.sessions.iterdir()} == {".keep", "pipe", "agent"}


# ── files that are not lock files, or are damaged ────────────────────────────────────────────────────────────────────


def _overwrite(store: Store, start: int, end: int) -> None:
    noise = random.Random(start).randbytes(end - start)  # noqa: S311  the same damage every time
    with open(store.path, "r+b") as file:
        file.seek(start)
        file.write(noise)


def _make_lock_file(store: Store) -> None:
    with holdfast.Client(store.url) as client, client.lock("one"):
        pass
    assert store.path.stat().st_size >= 2 * PAGE


PAGE = 1024

DAMAGE = {
    "the magic bytes": (0, 16),
    "the header": (16, 100),
    "the schema": (100, PAGE),
    "the tickets": (PAGE, 2 * PAGE),
    "everything": (0, 2 * PAGE),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_an_error_names_a_damaged_file(damage: str, store: Store) -> None:
    _make_lock_file(store)
    _overwrite(store, *DAMAGE[damage])

    with holdfast.Client(store.url) as client, pytest.raises(holdfast.BackendUnavailable) as refused:
        client.lock("one").acquire(timeout=0)

    report(str(refused.value))
    assert str(store.path) in str(refused.value)


def test_an_error_names_a_truncated_file(store: Store) -> None:
    _make_lock_file(store)
    os.truncate(store.path, PAGE + PAGE // 2)

    with holdfast.Client(store.url) as client, pytest.raises(holdfast.BackendUnavailable) as refused:
        client.lock("one").acquire(timeout=0)

    report(str(refused.value))
    assert str(store.path) in str(refused.value)


def test_an_empty_file_is_used_as_a_new_one(store: Store) -> None:
    store.path.touch()

    with holdfast.Client(store.url) as client, client.lock("one", timeout=0) as lease:
        assert lease.held


def test_a_text_file_is_refused_and_not_changed(store: Store) -> None:
    store.path.write_text("a shopping list\n" * 1000)
    before = _digest(store)

    with holdfast.Client(store.url) as client, pytest.raises(holdfast.BackendUnavailable, match="not a lock file"):
        client.lock("one").acquire(timeout=0)

    assert _digest(store) == before


def test_an_error_names_a_file_without_its_own_row(store: Store) -> None:
    _make_lock_file(store)
    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute("DELETE FROM tickets")
        connection.commit()

    with holdfast.Client(store.url) as client, pytest.raises(holdfast.BackendUnavailable, match="damaged"):
        client.lock("one").acquire(timeout=0)


@pytest.mark.parametrize("version", [0, 1, 3, 7])
def test_a_database_of_another_program_is_refused_and_not_changed(version: int, store: Store) -> None:
    # 3 is a version number of holdfast, 1 the most common one of other programs.
    with closing(sqlite3.connect(store.path)) as theirs:
        theirs.execute("CREATE TABLE invoices (number)")
        theirs.execute(f"PRAGMA user_version = {version}")
    before = _digest(store)

    with holdfast.Client(store.url) as client, pytest.raises(holdfast.BackendUnavailable) as refused:
        client.lock("one").acquire(timeout=0)

    report(str(refused.value))
    assert _digest(store) == before
    assert sorted(path.name for path in store.path.parent.iterdir()) == [store.path.name]
    if version != 7:  # 7 could be a future version of holdfast
        assert "another program" in str(refused.value)


def test_a_file_of_a_newer_version_is_refused_and_not_changed(store: Store) -> None:
    _make_lock_file(store)
    store.query("PRAGMA user_version = 99")
    before = _digest(store)

    with holdfast.Client(store.url) as client, pytest.raises(holdfast.BackendUnavailable, match="version 99"):
        client.lock("one").acquire(timeout=0)

    assert _digest(store) == before


def _digest(store: Store) -> str:
    return hashlib.sha256(store.path.read_bytes()).hexdigest()


# ── a process stopped in the middle of a transaction ─────────────────────────────────────────────────────────────────


def test_errors_name_a_process_that_is_stopped_in_a_transaction(pool: WorkerPool, store: Store) -> None:
    stuck, other, newcomer = pool.start_many(3, store.url)
    other.call("acquire", lock="held")
    stuck.call("begin_raw")
    stuck.stop()

    for worker, command in ((other, "acquire"), (other, "release"), (newcomer, "acquire")):
        began = now()
        with pytest.raises(Refused) as refused:
            if command == "acquire":
                worker.call("acquire", lock="one", timeout=0)
            else:
                worker.call("release", lock="held")
        report(f"{command}: after {now() - began:.1f} s: {refused.value}")
        assert refused.value.kind == "BackendUnavailable"
        assert f"process {stuck.pid} " in refused.value.message
        assert "database is locked" not in refused.value.message
        assert now() - began < PATIENCE / 2

    stuck.resume()
    stuck.call("commit_raw")
    assert newcomer.call("acquire", lock="one", timeout=5)["acquired"] is not None
    assert newcomer.call("acquire", lock="held", timeout=5)["acquired"] is not None  # the failed release was repeated


def test_a_waiter_keeps_waiting_while_a_process_is_stopped_in_a_transaction(
    pool: WorkerPool, store: Store, observer: Observer
) -> None:
    holder, waiter, stuck = pool.start_many(3, store.url)
    holder.call("acquire", lock="one", ttl=30)
    waiter.send("acquire", lock="one", ttl=30)
    observer.await_queue("one", waiter.pid)

    stuck.call("begin_raw")
    stuck.stop()
    assert waiter.is_silent(2.0)  # its polls have failed
    stuck.resume()
    stuck.call("commit_raw")
    holder.call("release", lock="one")

    assert waiter.receive()["acquired"] is not None


def test_a_lease_that_cannot_be_renewed_because_of_a_stopped_process_is_lost_in_time(
    pool: WorkerPool, store: Store
) -> None:
    holder, stuck = pool.start_many(2, store.url)
    holder.call("acquire", lock="one", ttl=1.5)

    stuck.call("begin_raw")
    stuck.stop()
    began = now()
    lost = holder.call("wait_lost", lock="one", timeout=20)

    assert lost["lost"] is True
    report(f"reported after {lost['at'] - began:.2f} s; ttl 1.5 s")
    assert lost["at"] - began < 4.0
    with pytest.raises(Refused, match="LockLost"):
        holder.call("check", lock="one")


def test_a_loss_is_reported_in_time_during_a_request_of_another_thread(pool: WorkerPool, store: Store) -> None:
    holder, stuck = pool.start_many(2, store.url)
    holder.call("acquire_and_watch", lock="one", ttl=1.5)

    stuck.call("begin_raw")
    stuck.stop()
    began = now()
    holder.call("acquire_in_background", lock="two")
    lost_at = holder.call("await_loss", lock="one", timeout=20)["lost_at"]

    report(f"reported after {lost_at - began:.2f} s; ttl 1.5 s, a request may take 5 s")
    assert lost_at - began < 4.0


def test_an_acquire_without_waiting_returns_in_time_during_a_request_of_another_thread(
    pool: WorkerPool, store: Store
) -> None:
    other, alone, stuck = pool.start_many(3, store.url)
    for worker in (other, alone):
        worker.call("acquire", lock="three", timeout=0)
    stuck.call("begin_raw")
    stuck.stop()

    other.call("acquire_in_background", lock="two")
    waited = []
    for worker in (alone, other):
        began = now()
        with pytest.raises(Refused, match="BackendUnavailable"):
            worker.call("acquire", lock="one", timeout=0)
        waited.append(now() - began)

    report(f"alone {waited[0]:.2f} s, beside a request that may take 5 s: {waited[1]:.2f} s")
    assert waited[1] < 3 * waited[0]


# ── another boot ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("rebooted", [False, True], ids=["same boot", "another boot"])
def test_tickets_are_ended_by_a_reboot(
    rebooted: bool,  # noqa: FBT001  a parameter of the test
    pool: WorkerPool,
    store: Store,
) -> None:
    holder = pool.start(store.url)
    holder.call("acquire", lock="one", ttl=300)
    holder.kill()
    shutil.rmtree(store.sessions)  # so that its ticket counts until its ttl has passed

    if rebooted:
        store.query("UPDATE tickets SET session = 'another' WHERE name = ''")
    with holdfast.Client(store.url) as client:
        lease = client.lock("one").acquire(timeout=0)

        assert (lease is not None) == rebooted
        if lease is not None:
            lease.release()
