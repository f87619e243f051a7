"""`etcdctl lock`, which uses Go's concurrency.Mutex, and holdfast exclude each other."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.integration.etcd.helpers import acquired
from tests.support.etcd import shared
from tests.support.etcd.servers import Server, etcdctl
from tests.support.processes import PATIENCE, eventually

SECONDS = float(os.environ.get("HOLDFAST_TEST_SECONDS", "3"))
TURNS_MIN = 5

# The command that etcdctl runs while it holds the lock. It records its start and its end.
NOTE_TURN = """
import sys, time
with open(sys.argv[1], "a") as notes:
    notes.write(f"{sys.argv[2]} in {time.monotonic()}\\n"); notes.flush()
    time.sleep(0.01)
    notes.write(f"{sys.argv[2]} out {time.monotonic()}\\n")
"""


@pytest.fixture
def prefix() -> str:
    return shared.fresh_url().partition("prefix=")[2].replace("%2F", "/")


@pytest.fixture
def client(server: Server, prefix: str, open_client: OpenClient) -> holdfast.Client:
    return open_client(server.url, prefix=prefix)


@pytest.fixture
def etcdctl_lock(server: Server, prefix: str) -> Iterator[subprocess.Popen[str]]:
    """A process of `etcdctl lock` for the lock `shared`. It ends with the test."""
    with etcdctl(server, "lock", f"{prefix}shared", "--ttl", "5") as process:
        yield process
        process.terminate()
        process.communicate(timeout=20)


def test_a_lock_of_etcdctl_blocks_holdfast_until_it_is_released(
    client: holdfast.Client, etcdctl_lock: subprocess.Popen[str]
) -> None:
    assert etcdctl_lock.stdout is not None
    assert etcdctl_lock.stdout.readline(), "etcdctl prints its key when it holds the lock"

    assert client.lock("shared").acquire(timeout=0) is None
    assert client.rwlock("shared").read().acquire(timeout=0) is None
    (holder,) = client.inspect("shared").holders
    assert (holder.agent, holder.exclusive) == ("another program", True)
    waiting = threading.Thread(target=lambda: client.lock("shared").acquire(timeout=30).release())  # type: ignore[union-attr]
    waiting.start()
    eventually(lambda: len(client.inspect("shared").waiters) == 1)
    etcdctl_lock.terminate()

    waiting.join(20)
    assert not waiting.is_alive()


def test_a_lease_of_holdfast_blocks_etcdctl_until_it_is_released(
    server: Server, prefix: str, client: holdfast.Client, request: pytest.FixtureRequest
) -> None:
    ours = acquired(client, "shared")
    etcdctl_lock = request.getfixturevalue("etcdctl_lock")
    eventually(lambda: len(server.keys(f"{prefix}shared/")) == 2)
    assert len(client.inspect("shared").waiters) == 1

    ours.release()

    assert etcdctl_lock.stdout.readline().startswith(f"{prefix}shared/")


def test_a_lock_of_etcdctl_can_be_broken(client: holdfast.Client, etcdctl_lock: subprocess.Popen[str]) -> None:
    assert etcdctl_lock.stdout is not None
    etcdctl_lock.stdout.readline()

    assert client.break_lock("shared", client.inspect("shared").holders[0].fence or 0)

    with client.lock("shared", timeout=0):
        pass


def test_names_with_slashes_are_shared_when_raw_names_is_on(
    server: Server, prefix: str, open_client: OpenClient
) -> None:
    raw = open_client(server.url, prefix=prefix, raw_names="yes")
    with etcdctl(server, "lock", f"{prefix}jobs/nightly") as etcdctl_lock:
        assert etcdctl_lock.stdout is not None
        etcdctl_lock.stdout.readline()

        assert raw.lock("jobs/nightly").acquire(timeout=0) is None
        assert [info.name for info in raw.locks()] == ["jobs/nightly"]
        etcdctl_lock.terminate()
        etcdctl_lock.communicate(timeout=20)

    acquired(raw, "jobs/nightly").release()


def _contend(server: Server, prefix: str, client: holdfast.Client, notes: Path) -> dict[str, int]:
    """Contend for SECONDS, and up to PATIENCE longer while a client has less than TURNS_MIN turns. Return all turns."""
    began = time.monotonic()
    script = notes.with_suffix(".py")
    script.write_text(NOTE_TURN)
    turns = dict.fromkeys(["their-1", "their-2", "our-1", "our-2"], 0)

    def may_continue() -> bool:
        seconds = time.monotonic() - began
        return seconds < SECONDS or (min(turns.values()) < TURNS_MIN and seconds < SECONDS + PATIENCE)

    def with_etcdctl(name: str) -> None:
        while may_continue():
            command = (sys.executable, str(script), str(notes), name)
            with etcdctl(server, "lock", f"{prefix}both", *command) as process:
                _, output = process.communicate(timeout=30)
                assert process.returncode == 0, output  # otherwise pytest reports the output
            turns[name] += 1

    def with_holdfast(name: str) -> None:
        while may_continue():
            with client.lock("both", timeout=30), open(notes, "a") as file:
                file.write(f"{name} in {time.monotonic()}\n")
                file.flush()
                time.sleep(0.01)
                file.write(f"{name} out {time.monotonic()}\n")
            turns[name] += 1

    functions = {name: with_etcdctl if name.startswith("their") else with_holdfast for name in turns}
    threads = [threading.Thread(target=function, args=(name,)) for name, function in functions.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS + 2 * PATIENCE)
        assert not thread.is_alive()
    return turns


@pytest.mark.slow
def test_mixed_contention_never_overlaps_and_all_clients_get_turns(
    server: Server, prefix: str, client: holdfast.Client, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"

    turns = _contend(server, prefix, client, notes)

    records = [line.split() for line in notes.read_text().splitlines()]
    assert len(records) == 2 * sum(turns.values())
    for (name, start, _), (end_name, end, _) in zip(records[::2], records[1::2], strict=True):
        assert (name, start, end) == (end_name, "in", "out")
    assert min(turns.values()) >= TURNS_MIN, turns
