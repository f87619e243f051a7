"""Hazard: the lock file is deleted or replaced while it is used, so that a lock is held in two different files.

Nothing can prevent root from doing that. The guarantee is: a holder of a lock in the old file gets LockLost at the
next check or renewal, all clients use the new file, and the fences of the new file are greater.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.sqlite.io.file_system import FileIdentity
from tests.integration.sqlite.conftest import Observer, Store
from tests.support.intervals import assert_exclusive, report, turns_of
from tests.support.processes import Refused, Worker, WorkerPool, eventually, now

SUFFIXES = {
    "the file": ("",),
    "the file and SQLite's two": ("", "-wal", "-shm"),
    "everything": ("", "-wal", "-shm", "-sessions"),
}


def delete(store: Store, files: str) -> None:
    for suffix in SUFFIXES[files]:
        path = f"{store.path}{suffix}"
        if os.path.isdir(path):
            shutil.rmtree(path)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def open_files(pid: int) -> list[str]:
    """The paths of the open files of the process. The kernel marks deleted files in them."""
    folder = f"/proc/{pid}/fd"
    paths = []
    for fd in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            paths.append(os.readlink(f"{folder}/{fd}"))
    return paths


@pytest.mark.parametrize("files", SUFFIXES)
def test_a_holder_learns_at_the_next_check_that_its_file_was_deleted(
    files: str, pool: WorkerPool, store: Store
) -> None:
    holder = pool.start(store.url)
    holder.call("acquire", lock="one")

    delete(store, files)

    with pytest.raises(Refused, match="LockLost"):
        holder.call("check", lock="one")
    assert holder.call("state", lock="one")["lost"] is True


@pytest.mark.parametrize("files", SUFFIXES)
def test_a_holder_whose_file_was_deleted_loses_at_the_next_renewal(files: str, pool: WorkerPool, store: Store) -> None:
    holder = pool.start(store.url)
    holder.call("acquire", lock="one", ttl=3)

    deleted = now()
    delete(store, files)
    lost = holder.call("wait_lost", lock="one", timeout=20)

    report(f"reported after {lost['at'] - deleted:.2f} s; renewed every second")
    assert lost["lost"] is True
    assert lost["at"] - deleted < 2.5  # before the ttl has passed: a renewal reports the loss, not the clock


@pytest.mark.parametrize("files", SUFFIXES)
def test_a_holder_whose_file_was_deleted_cannot_release(files: str, pool: WorkerPool, store: Store) -> None:
    holder = pool.start(store.url)
    holder.call("acquire", lock="one")

    delete(store, files)

    with pytest.raises(Refused, match="LockLost"):
        holder.call("release", lock="one")


@pytest.mark.parametrize("files", SUFFIXES)
@pytest.mark.parametrize("taker_kind", ["same process", "other process", "process that used the old file"])
def test_a_lock_in_a_new_file_has_a_greater_fence(taker_kind: str, files: str, pool: WorkerPool, store: Store) -> None:
    holder, other = pool.start_many(2, store.url)
    old = holder.call("acquire", lock="one")
    if taker_kind == "process that used the old file":
        assert other.call("acquire", lock="one", timeout=0)["acquired"] is None

    delete(store, files)
    taker = holder if taker_kind == "same process" else other
    if taker is holder:
        with pytest.raises(Refused, match="LockLost"):
            holder.call("check", lock="one")
    new = taker.call("acquire", lock="one", timeout=5)

    assert new["fence"] > old["fence"]
    taker.call("check", lock="one")
    taker.call("renew", lock="one")
    if taker is other:
        with pytest.raises(Refused, match="LockLost"):
            holder.call("check", lock="one")
    taker.call("release", lock="one")


def test_a_lease_of_the_old_file_is_lost_even_if_its_client_uses_the_new_one(pool: WorkerPool, store: Store) -> None:
    # The new file often gets the inode number of the old file when the last process has closed the old one.
    holder = pool.start(store.url)

    for number in range(20):
        holder.call("acquire", lock=f"old-{number}")
        delete(store, "the file and SQLite's two")
        holder.call("acquire", lock=f"new-{number}")

        with pytest.raises(Refused, match="LockLost"):
            holder.call("check", lock=f"old-{number}")
        holder.call("check", lock=f"new-{number}")


def test_a_death_is_noticed_at_once_in_the_new_file_too(pool: WorkerPool, store: Store, observer: Observer) -> None:
    holder, waiter = pool.start_many(2, store.url)
    for worker in (holder, waiter):
        worker.call("acquire", lock="old", timeout=0)
    delete(store, "everything")
    holder.call("acquire", lock="one", ttl=30)
    waiter.send("acquire", lock="one", ttl=30)
    observer.await_queue("one", waiter.pid)

    killed = now()
    holder.kill()
    acquired = waiter.receive()["acquired"]

    report(f"in {(acquired - killed) * 1e3:.1f} ms after the kill")
    assert acquired - killed < 5.0


def test_processes_use_the_last_file_when_their_file_is_deleted_repeatedly(pool: WorkerPool, store: Store) -> None:
    workers = pool.start_many(4, store.url)
    seconds = 2.0
    start = now() + 0.1
    for worker in workers:
        worker.send("stubborn_turns", lock="one", start=start, seconds=seconds, hold=0.001)

    deletions = 0
    while now() < start + seconds - 0.5:
        if store.path.exists():
            delete(store, "the file" if deletions % 2 else "the file and SQLite's two")
            deletions += 1
        workers[0].is_silent(0.05)
    first = [worker.receive() for worker in workers]
    problems = {problem for answer in first for problem in answer["problems"]}
    report(f"{deletions} deletions; {sum(len(answer['turns']) for answer in first)} turns; {problems}")

    start = now() + 0.3
    for worker in workers:
        worker.send("turns", lock="one", start=start, times=100)
    turns = turns_of(worker.receive()["turns"] for worker in workers)
    assert_exclusive(turns)


def test_a_holder_loses_the_lock_when_the_wal_and_shm_files_are_deleted(pool: WorkerPool, store: Store) -> None:
    # These files contain the newest tickets and all locks of SQLite.
    holder, other = pool.start_many(2, store.url)
    holder.call("acquire", lock="one")

    for suffix in ("-wal", "-shm"):
        os.unlink(f"{store.path}{suffix}")
    other.call("acquire", lock="one", timeout=0)

    with pytest.raises(Refused, match="LockLost"):
        holder.call("check", lock="one")


@pytest.fixture
def coarse_disk(tmp_path: Path) -> Iterator[Path]:
    """A mounted file system that stores times in whole seconds: ext4 with inodes of 128 bytes."""
    image, mount = tmp_path / "image", tmp_path / "mount"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(8 << 20)
    for command in (
        ["mkfs.ext4", "-q", "-F", "-I", "128", str(image)],
        ["mount", "-o", "loop", str(image), str(mount)],
    ):
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            reason = f"cannot make a file system with times of whole seconds: {done.stderr.strip()}"
            if os.environ.get("CI") == "true":
                pytest.fail(reason)
            pytest.skip(reason)
    yield mount
    subprocess.run(["umount", mount], check=True)


def test_the_files_are_compared_at_every_check_on_a_disk_with_times_of_whole_seconds(coarse_disk: Path) -> None:
    store = Store(coarse_disk / "locks.db")
    with holdfast.Client(store.url) as client, client.lock("one"):
        identity = FileIdentity(str(store.path))
        identity.record()
        changed = os.stat(coarse_disk).st_ctime_ns
        assert changed % 1_000_000_000 == 0
        eventually(lambda: time.time_ns() - changed > 2 * FileIdentity._SETTLED_NS)

        assert identity.is_unchanged()
        assert identity._settled is None  # the folder's time does not show changes within the same second


def test_a_file_with_a_second_hard_link_is_refused(store: Store, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with holdfast.Client(store.url) as client, client.lock("one") as lease:
        os.link(store.path, other / "locks.db")

        with pytest.raises(holdfast.ConfigurationError, match="2 hard links"):
            holdfast.Client(f"sqlite://{other}/locks.db")
        lease.check()  # the first path stays valid


def test_a_client_made_before_the_second_hard_link_is_refused_at_its_first_use(store: Store, tmp_path: Path) -> None:
    with holdfast.Client(store.url) as client, client.lock("one"):
        pass
    with holdfast.Client(store.url) as other:
        os.link(store.path, tmp_path / "link.db")

        with pytest.raises(holdfast.BackendUnavailable, match="2 hard links"):
            other.lock("one").acquire(timeout=0)


def test_a_file_that_is_mounted_alone_is_refused(store: Store, tmp_path: Path) -> None:
    with holdfast.Client(store.url) as client, client.lock("one"):
        pass
    alone = tmp_path / "alone.db"
    alone.touch()
    bind = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    mount = ["unshare", "--mount", "sh", "-c", bind, "sh", str(store.path), str(alone)]
    probe = subprocess.run([*mount, "true"], check=False, capture_output=True, text=True)
    if probe.returncode != 0:
        reason = f"cannot mount: {probe.stderr.strip()}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)

    program = "import holdfast, sys; holdfast.Client(sys.argv[1])"
    child = subprocess.run(
        [*mount, sys.executable, "-c", program, f"sqlite://{alone}"], check=False, capture_output=True, text=True
    )

    assert child.returncode != 0
    assert "ConfigurationError" in child.stderr
    assert "mount the folder that contains it" in child.stderr


def is_stopped_with_open_file(worker: Worker, store: Store) -> bool:
    worker.stop()
    if str(store.path) in open_files(worker.pid):
        return True
    worker.resume()
    return False


def has_acquired(worker: Worker, lock: str, *, within: float = 0.01) -> bool:
    """Whether the acquire that was sent to the worker has succeeded.

    If the worker was stopped for longer than the timeout of a request, it reports an outage. Then the acquire is sent
    again.
    """
    if worker.is_silent(within):
        return False
    try:
        return worker.receive()["acquired"] is not None
    except Refused as refused:
        if refused.kind != "BackendUnavailable":
            raise
        worker.send("acquire", lock=lock)
        return False


def test_a_file_that_is_deleted_while_it_is_opened_is_not_used(pool: WorkerPool, store: Store) -> None:
    first, stranger, slow, quick = pool.start_many(4, store.url)
    first.call("acquire", lock="old")
    stranger.call("begin_raw")
    slow.send("acquire", lock="one")
    # The slow worker must not run between the deletions. It could create a file and hold the lock in it until the log
    # of this file is deleted.
    eventually(lambda: not has_acquired(slow, "one") and is_stopped_with_open_file(slow, store))

    delete(store, "the file and SQLite's two")
    quick.send("acquire", lock="one")
    slow.resume()
    stranger.call("commit_raw")
    # In most runs the quick worker is first, but the slow worker polls too.
    holders: list[Worker] = []

    def is_acquired() -> bool:
        holders.extend(worker for worker in (quick, slow) if has_acquired(worker, "one"))
        return bool(holders)

    eventually(is_acquired)
    assert len(holders) == 1, "both hold the lock, in two files"
    (other,) = {quick, slow} - {*holders}

    assert not has_acquired(other, "one", within=0.5), "both hold the lock, in two files"
    holders[0].call("release", lock="one")
    eventually(lambda: has_acquired(other, "one"))
    assert f"{store.path} (deleted)" not in open_files(slow.pid)


def test_a_holder_loses_the_lock_when_its_file_is_replaced_by_another_lock_file(pool: WorkerPool, store: Store) -> None:
    with holdfast.Client(f"{store.url}.new") as client, client.lock("one"):
        pass
    holder, other = pool.start_many(2, store.url)
    old = holder.call("acquire", lock="one")

    os.replace(f"{store.path}.new", store.path)

    with pytest.raises(Refused, match="LockLost"):
        holder.call("check", lock="one")
    assert other.call("acquire", lock="one", timeout=5)["fence"] > old["fence"]
    other.call("check", lock="one")
    other.call("release", lock="one")
    assert store.query("PRAGMA integrity_check") == [("ok",)]


def test_a_folder_in_place_of_the_file_is_a_loss_for_the_holder_and_an_outage_for_the_others(
    pool: WorkerPool, store: Store
) -> None:
    holder, other = pool.start_many(2, store.url)
    holder.call("acquire", lock="one")
    other.call("acquire", lock="one", timeout=0)

    delete(store, "the file and SQLite's two")
    store.path.mkdir()

    with pytest.raises(Refused, match="LockLost"):
        holder.call("check", lock="one")
    with pytest.raises(Refused, match="BackendUnavailable"):
        holder.call("acquire", lock="two", timeout=0)
    with pytest.raises(Refused, match="BackendUnavailable"):
        other.call("acquire", lock="one", timeout=0)
    store.path.rmdir()
    assert other.call("acquire", lock="one", timeout=5)["acquired"] is not None
