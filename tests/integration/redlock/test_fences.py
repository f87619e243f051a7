"""Hazard: a fence is not greater than all earlier fences, when nodes die, hang or restart without data while many
clients use them.

`HOLDFAST_REDLOCK_TURNS` is the minimum number of leases of all processes together. By default the test runs until every
fault has happened to every node.
"""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest

import holdfast
from tests.integration.redlock.conftest import StartRedlock
from tests.support.intervals import Turn, report, turns_of
from tests.support.processes import Worker, WorkerPool, now
from tests.support.redis.redlock import RedlockServers

TURNS = int(os.environ.get("HOLDFAST_REDLOCK_TURNS", "250"))
PROCESSES = 4
ROUND = 0.4  # seconds between two faults
SLICE = 2.0  # seconds for which the processes work before they report


def test_fences_grow_under_two_prefixes_that_form_the_same_key(redlock: RedlockServers) -> None:
    fences = []
    urls = redlock.url(quarantine="no"), redlock.url(quarantine="no", prefix="")
    with holdfast.Client(urls[0]) as first, holdfast.Client(urls[1]) as second:
        for client, name in ((first, "x"), (second, "holdfast:x"), (first, "x"), (second, "holdfast:x")):
            with client.lock(name) as lease:
                fences.append(lease.fence)

    assert fences == sorted(set(fences))


def test_fences_grow_when_an_earlier_version_has_counted_in_another_record(redlock: RedlockServers) -> None:
    earlier_record, count = "holdfast:{holdfast:x}:record:", 2**52
    for server in redlock.servers:
        server.call("HSET", earlier_record, "count", count)

    with holdfast.Client(redlock.url(quarantine="no")) as client, client.lock("x") as lease:
        counts = [int(server.call("HGET", earlier_record, "count")) for server in redlock.servers]

    assert lease.fence > count
    assert sum(counted >= lease.fence for counted in counts) > len(counts) / 2


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_fences_grow_while_nodes_are_killed_restarted_empty_and_paused(
    pool: WorkerPool, start_redlock: StartRedlock
) -> None:
    redlock = start_redlock()
    # Without quarantine, a node that has lost its data votes at once. This is the worst case for fences, which have to
    # grow without it too. Two clients can then hold the lock at the same time; the test only compares the fences.
    workers = pool.start_many(PROCESSES, redlock.url(quarantine="no", node_timeout=0.2))
    faults = _Faults(redlock)
    turns: list[Turn] = []
    problems: Counter[str] = Counter()

    began = now()
    while len(turns) < TURNS or not faults.are_all_done:
        start = now() + 0.1
        for worker in workers:
            worker.send("stubborn_turns", lock="one", start=start, seconds=SLICE, hold=0.001)
        while now() < start + SLICE:
            faults.next()
            time.sleep(ROUND)
        faults.heal()
        turns += _reports(workers, problems)
    seconds = now() - began

    turns.sort(key=lambda turn: turn.acquired)
    report(
        f"{len(turns)} leases of {PROCESSES} processes in {seconds:.0f} s; {dict(faults.done)}; "
        f"errors: {dict(problems)}; overlapping: {_overlaps(turns)}"
    )
    assert len({turn.fence for turn in turns}) == len(turns)
    _assert_growing(turns)


def _reports(workers: list[Worker], problems: Counter[str]) -> list[Turn]:
    turns = []
    for worker in workers:
        answer = worker.receive(within=60)
        turns += turns_of([answer["turns"]])
        for problem, number in answer["problems"].items():
            problems[problem.partition(":")[0]] += number
    return turns


def _assert_growing(turns: list[Turn]) -> None:
    """Check that a lease requested after another was granted has the greater fence."""
    highest: list[tuple[float, int]] = []  # (granted at, the greatest fence until then)
    for turn in turns:
        highest.append((turn.acquired, max(turn.fence, highest[-1][1] if highest else 0)))
    index = 0
    for turn in sorted(turns, key=lambda turn: turn.asked):
        while index < len(highest) and highest[index][0] < turn.asked:
            index += 1
        if index:
            assert turn.fence > highest[index - 1][1], f"{turn} follows a greater fence"


def _overlaps(turns: list[Turn]) -> int:
    ends, count = 0.0, 0
    for turn in turns:
        count += turn.acquired < ends
        ends = max(ends, turn.leaving)
    return count


class _Faults:
    """Rounds of five steps, each with the nodes in another order.

    1. A node loses its data. 2. This node is paused, so that the other nodes do not know the fences that only it has
    counted. 3. Another node loses its data. 4. The other three nodes are paused or killed, and one of them starts again
    without its data. Now a majority of nodes that have lost their data decides. 5. All nodes run.
    """

    def __init__(self, redlock: RedlockServers) -> None:
        self._redlock = redlock
        self._number = 0
        self._paused: set[int] = set()
        self._dead: set[int] = set()
        self.done = Counter({"killed": 0, "restarted empty": 0, "paused": 0})

    @property
    def are_all_done(self) -> bool:
        """Whether each of the five steps was done for each order of the nodes."""
        return self._number >= 5 * len(self._redlock.servers)

    def next(self) -> None:
        turn, step = divmod(self._number, 5)
        first, second, third, fourth, fifth = ((turn + offset) % 5 for offset in range(5))
        self._number += 1
        self.heal()
        match step:
            case 0:
                self._kill(first)
                self.heal()
            case 1:
                self._pause(first)
            case 2:
                self._kill(second)
                self.heal()
            case 3:
                self._pause(fourth)
                self._kill(fifth)
                self._kill(third)
                self._start(fifth)
            case _:
                pass

    def heal(self) -> None:
        for node in self._paused:
            self._redlock.servers[node].resume()
        self._paused.clear()
        for node in list(self._dead):
            self._start(node)

    def _kill(self, node: int) -> None:
        self._redlock.servers[node].kill()
        self._dead.add(node)
        self.done["killed"] += 1

    def _start(self, node: int) -> None:
        self._redlock.servers[node].start()
        self._dead.remove(node)
        self.done["restarted empty"] += 1

    def _pause(self, node: int) -> None:
        self._redlock.servers[node].stop()
        self._paused.add(node)
        self.done["paused"] += 1
