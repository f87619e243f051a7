"""`etcdctl lock`, and so Go's concurrency.Mutex, and holdfast keep each other out of the same lock."""

from __future__ import annotations

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
from tests.support.processes import eventually

Open = Callable[..., holdfast.Client]

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


def _contend(server: Server, prefix: str, client: holdfast.Client, notes: Path, seconds: float) -> None:
    end = time.monotonic() + seconds
    script = notes.with_suffix(".py")
    script.write_text(NOTES)

    def with_etcdctl(who: str) -> None:
        while time.monotonic() < end:
            command = (sys.executable, str(script), str(notes), who)
            with etcdctl(server, "lock", f"{prefix}both", *command) as process:
                _, said = process.communicate(timeout=30)
                assert process.returncode == 0, said  # else pytest tells of it, and there are too few turns

    def with_holdfast(who: str) -> None:
        while time.monotonic() < end:
            with client.lock("both", timeout=30), open(notes, "a") as file:
                file.write(f"{who} in {time.monotonic()}\n")
                file.flush()
                time.sleep(0.01)
                file.write(f"{who} out {time.monotonic()}\n")

    workers = [(with_etcdctl, "their 1"), (with_etcdctl, "their 2"), (with_holdfast, "our 1"), (with_holdfast, "our 2")]
    threads = [threading.Thread(target=work, args=(who.replace(" ", "-"),)) for work, who in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 60)
        assert not thread.is_alive()


@pytest.mark.parametrize("seconds", [5.0, pytest.param(30.0, marks=pytest.mark.slow)])
def test_mixed_contention_never_overlaps_and_all_get_turns(
    server: Server, prefix: str, client: holdfast.Client, tmp_path: Path, seconds: float
) -> None:
    notes = tmp_path / "notes"

    _contend(server, prefix, client, notes, seconds)

    visits = [line.split() for line in notes.read_text().splitlines()]
    for (who, comes, _), (same, goes, _) in zip(visits[::2], visits[1::2], strict=True):
        assert (who, comes, goes) == (same, "in", "out")
    turns = {who: sum(one[0] == who for one in visits) // 2 for who in ("our-1", "our-2", "their-1", "their-2")}
    assert min(turns.values()) >= 3, turns
