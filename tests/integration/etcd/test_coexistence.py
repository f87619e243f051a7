"""`etcdctl lock`, and so Go's concurrency.Mutex, and holdfast keep each other out of the same lock."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from tests.integration.etcd.crowds import taken
from tests.support.etcd import shared
from tests.support.etcd.servers import Server, etcdctl
from tests.support.processes import PATIENCE, eventually

Open = Callable[..., holdfast.Client]
SECONDS = float(os.environ.get("HOLDFAST_TEST_SECONDS", "10"))
TURNS_MIN = 5

# What runs under the lock on either side: it notes when it came and went.
NOTES = """
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
def client(server: Server, prefix: str, client_of: Open) -> holdfast.Client:
    return client_of(server.url, prefix=prefix)


@pytest.fixture
def theirs(server: Server, prefix: str) -> Iterator[subprocess.Popen[str]]:
    """`etcdctl lock` on the lock `shared`, until it is told to end."""
    with etcdctl(server, "lock", f"{prefix}shared", "--ttl", "5") as process:
        yield process
        process.terminate()
        process.communicate(timeout=20)


def test_etcdctl_keeps_us_out_and_lets_us_in(client: holdfast.Client, theirs: subprocess.Popen[str]) -> None:
    assert theirs.stdout is not None
    assert theirs.stdout.readline(), "it says its key when it has the lock"

    assert client.lock("shared").acquire(timeout=0) is None
    assert client.rwlock("shared").read().acquire(timeout=0) is None
    (holder,) = client.inspect("shared").holders
    assert (holder.agent, holder.exclusive) == ("another program", True)
    waiting = threading.Thread(target=lambda: client.lock("shared").acquire(timeout=30).release())  # type: ignore[union-attr]
    waiting.start()
    eventually(lambda: len(client.inspect("shared").waiters) == 1)
    theirs.terminate()

    waiting.join(20)
    assert not waiting.is_alive()


def test_we_keep_etcdctl_out_and_let_it_in(
    server: Server, prefix: str, client: holdfast.Client, request: pytest.FixtureRequest
) -> None:
    ours = taken(client, "shared")
    theirs = request.getfixturevalue("theirs")
    eventually(lambda: len(server.keys(f"{prefix}shared/")) == 2)
    assert len(client.inspect("shared").waiters) == 1

    ours.release()

    assert theirs.stdout.readline().startswith(f"{prefix}shared/")


def test_a_broken_lease_of_theirs_is_over(client: holdfast.Client, theirs: subprocess.Popen[str]) -> None:
    assert theirs.stdout is not None
    theirs.stdout.readline()

    assert client.break_lock("shared", client.inspect("shared").holders[0].fence or 0)

    assert client.lock("shared").acquire(timeout=0)


def test_names_with_slashes_meet_with_raw_names(server: Server, prefix: str, client_of: Open) -> None:
    raw = client_of(server.url, prefix=prefix, raw_names="yes")
    with etcdctl(server, "lock", f"{prefix}jobs/nightly") as theirs:
        assert theirs.stdout is not None
        theirs.stdout.readline()

        assert raw.lock("jobs/nightly").acquire(timeout=0) is None
        assert [info.name for info in raw.locks()] == ["jobs/nightly"]
        theirs.terminate()
        theirs.communicate(timeout=20)

    taken(raw, "jobs/nightly").release()


def _contend(server: Server, prefix: str, client: holdfast.Client, notes: Path) -> dict[str, int]:
    """Until the time is up and each has had some turns, or it is clear that somebody will not. Turns of each."""
    begin = time.monotonic()
    script = notes.with_suffix(".py")
    script.write_text(NOTES)
    turns = dict.fromkeys(["their-1", "their-2", "our-1", "our-2"], 0)

    def goes_on() -> bool:
        passed = time.monotonic() - begin
        return passed < SECONDS or (min(turns.values()) < TURNS_MIN and passed < SECONDS + PATIENCE)

    def with_etcdctl(who: str) -> None:
        while goes_on():
            command = (sys.executable, str(script), str(notes), who)
            with etcdctl(server, "lock", f"{prefix}both", *command) as process:
                _, said = process.communicate(timeout=30)
                assert process.returncode == 0, said  # else pytest tells of it, and there are too few turns
            turns[who] += 1

    def with_holdfast(who: str) -> None:
        while goes_on():
            with client.lock("both", timeout=30), open(notes, "a") as file:
                file.write(f"{who} in {time.monotonic()}\n")
                file.flush()
                time.sleep(0.01)
                file.write(f"{who} out {time.monotonic()}\n")
            turns[who] += 1

    works = {who: with_etcdctl if who.startswith("their") else with_holdfast for who in turns}
    threads = [threading.Thread(target=work, args=(who,)) for who, work in works.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS + 2 * PATIENCE)
        assert not thread.is_alive()
    return turns


@pytest.mark.slow
def test_mixed_contention_never_overlaps_and_all_get_turns(
    server: Server, prefix: str, client: holdfast.Client, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"

    turns = _contend(server, prefix, client, notes)

    visits = [line.split() for line in notes.read_text().splitlines()]
    assert len(visits) == 2 * sum(turns.values())
    for (who, comes, _), (same, goes, _) in zip(visits[::2], visits[1::2], strict=True):
        assert (who, comes, goes) == (same, "in", "out")
    assert min(turns.values()) >= TURNS_MIN, turns
