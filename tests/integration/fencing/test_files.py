"""Hazard: a late writer replaces a newer file; a crash leaves a partial file, or one that is newer than its fence."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import holdfast
from holdfast.fencing import files

SCRIPT = """
import sys
from holdfast.fencing import files
with files.guarded(sys.argv[1], fence=int(sys.argv[2])):
    print("inside", flush=True)
    sys.stdin.readline()
"""


def test_a_smaller_fence_is_refused_and_an_equal_or_greater_one_passes(tmp_path: Path) -> None:
    path = tmp_path / "prices.json"

    for fence in (7, 7, 10, 2**63 - 1):
        files.replace(path, b"%d" % fence, fence=fence)
        assert files.newest(path) == fence

    with pytest.raises(holdfast.StaleFence) as caught:
        files.replace(path, b"late", fence=10)
    assert (caught.value.resource, caught.value.fence, caught.value.newest) == (str(path), 10, 2**63 - 1)
    assert path.read_bytes() == b"%d" % (2**63 - 1)
    assert sorted(os.listdir(tmp_path)) == ["prices.json", "prices.json.fence"]


def test_replace_keeps_the_mode_and_follows_a_link(tmp_path: Path) -> None:
    path, link = tmp_path / "real", tmp_path / "link"
    path.write_bytes(b"old")
    path.chmod(0o640)
    link.symlink_to(path)

    files.replace(link, b"new", fence=5)

    assert link.is_symlink()
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o7777 == 0o640
    with pytest.raises(holdfast.StaleFence):
        files.replace(path, b"late", fence=4)


def test_a_waiting_writer_checks_the_fence_of_the_new_target_when_a_link_changes(tmp_path: Path) -> None:
    first, second, link = tmp_path / "first", tmp_path / "second", tmp_path / "link"
    link.symlink_to(first)
    outcome: list[BaseException] = []

    def write() -> None:
        try:
            files.replace(link, b"late", fence=5)
        except holdfast.StaleFence as error:
            outcome.append(error)

    with files.guarded(first, fence=4):
        thread = threading.Thread(target=write)
        thread.start()
        while not _waits_for_flock(tmp_path / "first.fence"):
            assert thread.is_alive()
        (tmp_path / "new").symlink_to(second)
        (tmp_path / "new").rename(link)
        files.replace(link, b"newest", fence=9)
    thread.join()

    assert len(outcome) == 1
    assert second.read_bytes() == b"newest"
    assert not first.exists()


def _waits_for_flock(path: Path) -> bool:
    inode = f":{path.stat().st_ino} "
    return any("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines())


def test_the_temporary_file_is_never_readable_by_others(tmp_path: Path) -> None:
    path, temporary = tmp_path / "secret", tmp_path / "secret.fence-new"
    path.touch(0o600)
    modes: set[int] = set()

    is_done = threading.Event()

    def watch() -> None:
        while not is_done.is_set():
            with contextlib.suppress(FileNotFoundError):
                modes.add(temporary.stat().st_mode & 0o077)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for fence in range(1, 200):
        files.replace(path, b"new", fence=fence)
    is_done.set()
    watcher.join()

    assert modes <= {0}


@pytest.mark.parametrize(
    ("mode", "umask", "expected"),
    [
        (0o600, 0o022, 0o600),
        (0o644, 0o022, 0o600),
        (0o664, 0o022, 0o660),
        (0o666, 0o022, 0o666),
        (None, 0o022, 0o600),
        (None, 0o002, 0o660),
    ],
)
def test_the_side_file_has_the_write_permissions_of_its_file(
    tmp_path: Path, mode: int | None, umask: int, expected: int
) -> None:
    path, side = tmp_path / "a", tmp_path / "a.fence"
    if mode is not None:
        path.touch()
        path.chmod(mode)
    before = os.umask(umask)
    try:
        files.replace(path, b"new", fence=1)
        assert side.stat().st_mode & 0o7777 == expected

        side.chmod(0o644)  # as an earlier version created it
        files.replace(path, b"newer", fence=2)
    finally:
        os.umask(before)

    assert side.stat().st_mode & 0o7777 == expected


def test_leftovers_of_a_dead_writer_do_not_block_the_next(tmp_path: Path) -> None:
    path = tmp_path / "a"
    (tmp_path / "a.fence").touch()
    (tmp_path / "a.fence-new").write_bytes(b"half of someth")

    files.replace(path, b"new", fence=5)

    assert path.read_bytes() == b"new"
    assert sorted(os.listdir(tmp_path)) == ["a", "a.fence"]


@pytest.mark.parametrize("content", [b"7", b"hello\n", b"0" * 18 + b"-7"])
def test_a_side_file_with_foreign_content_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.fence").write_bytes(content)

    with pytest.raises(holdfast.ConfigurationError, match=r"a\.fence"):
        files.replace(tmp_path / "a", b"new", fence=5)

    assert not (tmp_path / "a").exists()


def test_a_failed_body_keeps_its_fence_and_releases_the_flock(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), files.guarded(tmp_path / "a", fence=5):
        raise ZeroDivisionError

    with pytest.raises(holdfast.StaleFence):
        files.replace(tmp_path / "a", b"late", fence=4)
    files.replace(tmp_path / "a", b"new", fence=5)


def test_a_killed_writer_does_not_block_the_next(tmp_path: Path) -> None:
    path = tmp_path / "a"

    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(path), "5"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"inside\n"
        done = threading.Event()

        def replace() -> None:
            files.replace(path, b"new", fence=6)
            done.set()

        waiting = threading.Thread(target=replace)
        waiting.start()
        assert not done.wait(0.3)

        writer.send_signal(signal.SIGKILL)

        assert done.wait(30)
        waiting.join()
    assert path.read_bytes() == b"new"


def test_many_processes_with_random_fences_never_restore_an_older_file(tmp_path: Path) -> None:
    path = tmp_path / "register"
    files.replace(path, b"0", fence=1)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=_write, args=(str(path), number, results)) for number in range(3)]
    for process in processes:
        process.start()

    seen = [0]
    while any(process.is_alive() for process in processes):
        seen.append(int(path.read_bytes()))
        time.sleep(0.001)  # so that the writers get the processor
    outcomes = [results.get(timeout=30) for _ in processes]
    for process in processes:
        process.join(30)

    assert seen == sorted(seen)
    assert int(path.read_bytes()) == max(passed for passed, _ in outcomes) == files.newest(path)
    assert sum(refused for _, refused in outcomes) > 0


def _write(path: str, seed: int, results: multiprocessing.Queue[tuple[int, int]]) -> None:
    dice, greatest, refused = random.Random(seed), 0, 0  # noqa: S311  (repeatable, not secret)
    for step in range(60):
        fence = 1 + step * 10 + dice.randrange(100)
        try:
            files.replace(path, b"%d" % fence, fence=fence)
            greatest = max(greatest, fence)
        except holdfast.StaleFence:
            refused += 1
    results.put((greatest, refused))
