"""A network partition with clients that hold locks, a client that waits for them, and two other clients.

    hold, queue ── cut ──▶ the holders lose, the waiter acquires ── heal ──▶ the holders request the locks again

During the whole scenario the two other clients, which can reach a majority, take turns on another lock. One of them
knows all servers, contacts an isolated one first, and keeps a lock of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.intervals import Turn, assert_exclusive, report, turns_of
from tests.support.processes import Worker, WorkerPool, eventually, now
from tests.support.server_process import Host

CLIENT_PROCESS = Path(__file__).with_name("client_process.py")
TIMES = range(int(os.environ.get("HOLDFAST_TEST_TIMES", "1")))  # number of runs of each scenario: 20 when run by hand
TTL = 3.0  # seconds; of the leases of the holders
KEPT = "kept"
LOCKS = 4  # per holder; each is at another point of its renewal interval at the cut

_TurnsByLock = dict[str, Any]  # each turn is [requested, acquired, releasing, fence]


class Location(NamedTuple):
    """The host of a client, and the URL that it uses."""

    host: Host
    url: str


def run_scenario(
    holders: Mapping[str, Location],
    *,
    majority: Location,
    everywhere: Location,
    cut: Callable[[], object],
    heal: Callable[[], object],
    has_quorum: bool = True,
) -> None:
    """Isolate the holders, heal the network, and check what all clients observed.

    `majority` uses servers that stay connected to each other, `everywhere` uses all of them. Without `has_quorum` the
    network is healed before the clients have to make progress.
    """
    with WorkerPool(str(CLIENT_PROCESS)) as pool:
        clients = _Clients(pool, holders, majority, everywhere)
        clients.begin()

        cut()
        at = now()
        lost, lost_at, longest_pause = clients.lose()
        if not has_quorum:
            heal()
        clients.await_grants()
        clients.check_progress(after=at)

        heal()
        waiter_turns, later_turns = clients.reacquire()
        clients.check_progress(after=now())
        turns = clients.end()

    assert_exclusive(turns)
    assert lost.keys() == lost_at.keys() == waiter_turns.keys() == later_turns.keys() == set(clients.locks)
    for lock in clients.locks:
        assert_exclusive(turns_of([[lost[lock], waiter_turns[lock], later_turns[lock]]]))
    margins = sorted(waiter_turns[lock][1] - lost_at[lock] for lock in clients.locks)
    in_time = sum(margin > 0 for margin in margins)
    report(
        f"{in_time} of {len(margins)} losses were reported before the next grant, {margins[0]:.3f} s or more; "
        f"processes paused for up to {longest_pause:.3f} s; {len(turns)} turns of other clients"
    )
    # A process must run to report a loss, and may be delayed on a busy machine. Its checks of the lease ended before
    # the next grant: see `assert_exclusive` above.
    assert margins[0] > -longest_pause


class _Clients:
    """All clients of the scenario."""

    def __init__(
        self, pool: WorkerPool, holders: Mapping[str, Location], majority: Location, everywhere: Location
    ) -> None:
        self._holders = {name: _start(pool, location) for name, location in holders.items()}
        self._waiter = _start(pool, majority)
        self._elsewhere = [_start(pool, majority), _start(pool, everywhere)]
        self._keeper = self._elsewhere[-1]
        self.locks = [lock for name in holders for lock in _locks(name)]

    def begin(self) -> None:
        """Hold all locks, queue for each of them, and start the turns of the other clients."""
        for worker in self._elsewhere:
            worker.call("begin_turns")
        self._keeper.call("acquire", lock=KEPT)
        self._call_holders("hold", ttl=TTL)
        self._waiter.call("queue", locks=self.locks)
        eventually(lambda: bool(self._waiter.call("is_queued", locks=self.locks)["queued"]))

    def lose(self) -> tuple[_TurnsByLock, dict[str, float], float]:
        """Return the turns of the holders, when each loss was reported, and the longest pause of a process."""
        answers = self._call_holders("lose")
        lost_at = {lock: at for worker in answers for lock, at in worker["lost_at"].items()}
        return _by_lock(answers), lost_at, max(worker["longest_pause"] for worker in answers)

    def await_grants(self) -> None:
        """Check that the waiter acquires all locks."""
        assert self._waiter.call("granted", locks=self.locks)["locks"] == self.locks

    def check_progress(self, after: float) -> None:
        """Check that the other clients have another turn, and that the kept lock can be renewed."""
        for worker in self._elsewhere:
            worker.call("await_turn", after=after)
        self._keeper.call("keep", lock=KEPT)

    def reacquire(self) -> tuple[_TurnsByLock, _TurnsByLock]:
        """Let the former holders acquire the locks again. Return the turns of the waiter, and their new turns."""
        self._call_holders("queue")
        waiter_turns = _by_lock([self._waiter.call("release_all", locks=self.locks)])
        self._call_holders("granted")
        return waiter_turns, _by_lock(self._call_holders("release_all"))

    def end(self) -> list[Turn]:
        """Return the turns of the two other clients."""
        self._keeper.call("release", lock=KEPT)
        return turns_of(worker.call("end_turns")["turns"] for worker in self._elsewhere)

    def _call_holders(self, do: str, **arguments: object) -> list[dict[str, Any]]:
        """Call all holders at the same time, each for its own locks."""
        for name, client in self._holders.items():
            client.send(do, locks=_locks(name), **arguments)
        return [client.receive() for client in self._holders.values()]


def _locks(holder: str) -> list[str]:
    return [f"{holder} {number}" for number in range(LOCKS)]


def _start(pool: WorkerPool, location: Location) -> Worker:
    return pool.start(location.url, str(location.host.namespace))


def _by_lock(answers: Sequence[Mapping[str, Any]]) -> _TurnsByLock:
    return {lock: turn for answer in answers for lock, turn in answer["turns"].items()}
