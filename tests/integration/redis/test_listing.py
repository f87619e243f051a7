"""Hazard: a listing of the locks on a shared server reads its whole keyspace at full speed, repeatedly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast
from tests.integration.conftest import OpenClient
from tests.integration.redis.conftest import StartServer
from tests.integration.redis.helpers import take
from tests.support.processes import PATIENCE, eventually
from tests.support.redis.servers import Server
from tests.support.redis.topologies import Cluster, Watched
from tests.support.terminals import OnTerminal

HOLDFAST = [sys.executable, "-m", "holdfast"]
FILL = "for number = ARGV[1], ARGV[2] do redis.call('SET', 'foreign:' .. number, 'x') end"


class Watch:
    """`holdfast watch --json`, and what it reports."""

    def __init__(self, url: str) -> None:
        self.process = subprocess.Popen(
            [*HOLDFAST, "watch", "--json", "--interval", "0.05", "--url", url], stdout=subprocess.PIPE, text=True
        )

    def next_change(self) -> tuple[str, str]:
        assert self.process.stdout is not None
        change: dict[str, Any] = json.loads(self.process.stdout.readline())
        return change["change"], change["lock"]

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def watch() -> Iterator[Callable[[str], Watch]]:
    started: list[Watch] = []

    def start(url: str) -> Watch:
        started.append(Watch(url))
        return started[-1]

    yield start
    for watcher in started:
        watcher.end()


def fill(server: Server, number: int) -> None:
    """Create keys of other programs, by scripts that are short enough on a busy machine."""
    with server.connect() as connection:
        for first in range(1, number + 1, 5000):
            connection.call("EVAL", FILL, 0, first, min(first + 4999, number))


def ls(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*HOLDFAST, "ls", "--names", "--url", url, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


def calls(server: Server, command: str) -> int:
    """How often the server has run the command."""
    stats = server.info("commandstats").get(f"cmdstat_{command}", "calls=0,")
    return int(stats.partition("calls=")[2].partition(",")[0])


def scan_counts(server: Server, during: Callable[[], object]) -> list[int]:
    """The COUNT of each SCAN that the server received during the call."""
    with server.connect() as monitor:
        monitor.call("MONITOR")
        during()
        server.call("ECHO", "the-end")
        counts = []
        while '"the-end"' not in (line := monitor.read()):
            words = [word.strip('"') for word in line.split()[3:]]
            if words[0] == "SCAN":
                counts.append(int(words[words.index("COUNT") + 1]))
    return counts


def searched(url: str) -> str:
    """A URL with a method that has no index of its locks."""
    return f"{url}?method=setnx"


def test_a_search_requests_few_keys_at_a_time(server: Server, open_client: OpenClient) -> None:
    url = searched(server.url)
    client = open_client(url)
    fill(server, 2000)
    lease = take(client.lock("one"))

    counts = scan_counts(server, lambda: ls(url))

    assert len(counts) >= 10
    assert max(counts) <= 200
    assert ls(url).stdout == "one\n"
    lease.release()


@pytest.mark.parametrize("method", ["queue", "setnx"])
def test_locks_without_a_prefix_are_distinguished_from_keys_of_other_programs(
    server: Server, open_client: OpenClient, method: str
) -> None:
    client = open_client(f"{server.url}?prefix=&method={method}")
    fill(server, 30)
    leases = [take(client.lock(name)) for name in ("one", "a}b", "{tag}c")]

    assert [info.name for info in client.locks()] == ["a}b", "one", "{tag}c"]
    assert [info.name for info in client.locks("{tag}")] == ["{tag}c"]
    for lease in leases:
        lease.release()
    assert client.locks() == []


def test_keys_of_other_programs_are_not_read(server: Server, open_client: OpenClient) -> None:
    client = open_client(f"{server.url}?prefix=")
    fill(server, 300)
    lease = take(client.lock("one"))
    before = calls(server, "evalsha")

    assert [info.name for info in client.locks()] == ["one"]

    assert calls(server, "evalsha") - before <= 2  # the server may refuse the first: it has no script yet
    lease.release()


def test_completion_reads_the_index(server: Server, open_client: OpenClient) -> None:
    lease = take(open_client(server.url).lock("one"))

    listed = ls(server.url, "--no-search")

    assert (listed.returncode, listed.stdout, listed.stderr) == (0, "one\n", "")
    lease.release()


def test_completion_does_not_connect_when_there_is_no_index(server: Server) -> None:
    before = server.info("stats")["total_connections_received"]

    listed = ls(searched(server.url), "--no-search")

    assert (listed.returncode, listed.stdout) == (0, "")
    assert "has no index of its locks" in listed.stderr
    assert int(server.info("stats")["total_connections_received"]) == int(before) + 1  # the connection of this INFO


def test_watching_shows_locks_that_are_taken_again_and_new_ones(
    server: Server, open_client: OpenClient, watch: Callable[[str], Watch]
) -> None:
    client = open_client(server.url)
    fill(server, 100_000)  # a search of these takes several seconds at least
    lease = take(client.lock("old"))
    watching = watch(server.url)
    assert watching.next_change() == ("holds", "old")

    lease.release()
    assert watching.next_change() == ("released", "old")
    again = take(client.lock("old"))
    assert watching.next_change() == ("acquired", "old")
    new = take(client.lock("new"))
    assert watching.next_change() == ("acquired", "new")

    for lease in (again, new):
        lease.release()


def test_watching_reads_a_known_lock_without_waiting_for_the_end_of_a_search(
    server: Server, open_client: OpenClient, watch: Callable[[str], Watch]
) -> None:
    client = open_client(searched(server.url))
    lease = take(client.lock("known"))
    watching = watch(searched(server.url))
    assert watching.next_change() == ("holds", "known")
    fill(server, 100_000)  # from now on a search takes several seconds at least
    before = calls(server, "scan")

    lease.release()
    assert watching.next_change() == ("released", "known")

    assert calls(server, "scan") - before < 500


@pytest.mark.parametrize("events", ["KA", "K$"])
def test_watching_shows_a_new_lock_at_once_if_the_server_reports_changes(
    start_server: StartServer, open_client: OpenClient, watch: Callable[[str], Watch], events: str
) -> None:
    server = start_server("--notify-keyspace-events", events)
    client = open_client(searched(server.url))
    first = take(client.lock("first"))
    watching = watch(searched(server.url))
    assert watching.next_change() == ("holds", "first")
    fill(server, 200_000)  # from now on a search takes 1,000 requests

    for name in ("second", "third"):
        lease = take(client.lock(name))
        before = calls(server, "scan")
        assert watching.next_change() == ("acquired", name)
        # The lock is shown within two refreshes. The time between two refreshes is enough for 25 requests at most.
        assert calls(server, "scan") - before <= 100
        lease.release()
        assert watching.next_change() == ("released", name)
    first.release()


def test_a_long_search_shows_its_progress_and_ends_at_ctrl_c(server: Server) -> None:
    fill(server, 100_000)
    terminal = OnTerminal([*HOLDFAST, "ls", "--url", searched(server.url)], {**os.environ, "TERM": "xterm"})

    terminal.read_until(" of 100,000, throttled to protect the server")
    terminal.type("\x03")

    assert terminal.finish() == 130
    assert "searching keys: about" in terminal.text
    assert "Traceback" not in terminal.text
    assert terminal.output.endswith("\r\x1b[K")
    server.call("FLUSHALL")


def test_a_signal_ends_watching_in_the_middle_of_its_first_search(server: Server) -> None:
    fill(server, 100_000)
    before = calls(server, "scan")
    process = subprocess.Popen(
        [*HOLDFAST, "watch", "--url", searched(server.url)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    eventually(lambda: calls(server, "scan") > before)

    process.terminate()

    assert process.communicate(timeout=PATIENCE) == ("", "")
    assert process.returncode == 143
    server.call("FLUSHALL")


def test_a_search_requests_few_keys_at_a_time_from_each_primary_of_a_cluster(
    shared_cluster: Cluster, open_client: OpenClient
) -> None:
    client = open_client(searched(shared_cluster.url))
    leases = [take(client.lock(f"lock-{number}")) for number in range(20)]

    primaries = {shared_cluster.owner(shared_cluster.slot(f"holdfast:lock-{number}")) for number in range(20)}
    assert len(primaries) == 3
    for node in primaries:
        assert max(scan_counts(node, lambda: client.locks("lock-"))) <= 200

    assert len(client.locks("lock-")) == 20
    for lease in leases:
        lease.release()


def test_the_primary_behind_sentinels_is_searched(watched: Watched, open_client: OpenClient) -> None:
    client = open_client(searched(watched.url))
    lease = take(client.lock("one"))

    assert [info.name for info in client.locks()] == ["one"]
    lease.release()


async def test_tasks_keep_running_while_another_one_searches(server: Server) -> None:
    fill(server, 2000)
    async with holdfast.AsyncClient(searched(server.url)) as client, client.lock("one") as lease:
        assert [info.name for info in await client.locks()] == ["one"]
        lease.check()
