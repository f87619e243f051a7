"""What everybody sees when some are cut off: those who hold locks, those who wait for them, and two elsewhere.

    hold, queue ── cut ──▶ the holders lose, the waiters are let in ── heal ──▶ the holders ask again, and are let in

All that time the two elsewhere, whom the cut leaves in reach of a majority, take turns at another lock; and one of
them, who knows all servers and asks the one first that is cut off, keeps a lock of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.intervals import Turn, assert_exclusive, report, turns_of
from tests.support.partitions.networks import Host
from tests.support.processes import Worker, WorkerPool, eventually, now

PARTY = Path(__file__).with_name("party.py")
TIMES = range(int(os.environ.get("HOLDFAST_TEST_TIMES", "1")))  # that each drill is done: 20 when run by hand
TTL = 3.0  # seconds: of what the holders hold
KEPT = "kept"
LOCKS = 4  # of each holder, each at another moment of its renewal when the cut comes

_Turns = dict[str, Any]  # by lock: [asked, acquired, leaving, fence]


class Seat(NamedTuple):
    """Where a party is, and whom it asks."""

    host: Host
    url: str


def drill(
    holders: Mapping[str, Seat],
    *,
    majority: Seat,
    everywhere: Seat,
    cut: Callable[[], object],
    heal: Callable[[], object],
    goes_on: bool = True,
) -> None:
    """Cut the holders off and heal; what has to be seen is asserted.

    `majority` asks servers that stay in touch with each other, `everywhere` all of them. Unless it `goes_on`, nobody is
    asked for anything before the cut is healed.
    """
    with WorkerPool(str(PARTY)) as pool:
        cast = _Cast(pool, holders, majority, everywhere)
        cast.begin()

        cut()
        at = now()
        lost, told, stood_still = cast.lose()
        if not goes_on:
            heal()
        cast.await_grants()
        cast.go_on(after=at)

        heal()
        others, again = cast.begin_again()
        cast.go_on(after=now())
        turns = cast.end()

    assert_exclusive(turns)
    assert lost.keys() == told.keys() == others.keys() == again.keys() == set(cast.locks)
    for lock in cast.locks:
        assert_exclusive(turns_of([[lost[lock], others[lock], again[lock]]]))
    margins = sorted(others[lock][1] - told[lock] for lock in cast.locks)
    in_time = sum(margin > 0 for margin in margins)
    report(
        f"{in_time} of {len(margins)} were told before others were let in, {margins[0]:.3f} s or more; "
        f"they stood still for up to {stood_still:.3f} s; {len(turns)} turns elsewhere"
    )
    # Who is told has to run for that, and on a busy machine may not. By then it has ended, by its clock: see above.
    assert margins[0] > -stood_still


class _Cast:
    """Who takes part."""

    def __init__(self, pool: WorkerPool, holders: Mapping[str, Seat], majority: Seat, everywhere: Seat) -> None:
        self._holders = {name: _party(pool, seat) for name, seat in holders.items()}
        self._waiter = _party(pool, majority)
        self._elsewhere = [_party(pool, majority), _party(pool, everywhere)]
        self._keeps = self._elsewhere[-1]
        self.locks = [lock for name in holders for lock in _locks(name)]

    def begin(self) -> None:
        """All locks are held, each is waited for, and those elsewhere take turns."""
        for one in self._elsewhere:
            one.call("begin_turns")
        self._keeps.call("acquire", lock=KEPT)
        self._ask_holders("hold", ttl=TTL)
        self._waiter.call("queue", locks=self.locks)
        eventually(lambda: bool(self._waiter.call("is_queued", locks=self.locks)["queued"]))

    def lose(self) -> tuple[_Turns, dict[str, float], float]:
        """What the holders had; when they were told of the loss; for how long one stood still, at most."""
        said = self._ask_holders("lose")
        told = {lock: at for one in said for lock, at in one["told"].items()}
        return _by_lock(said), told, max(one["stood_still"] for one in said)

    def await_grants(self) -> None:
        """Who waits is let in."""
        assert self._waiter.call("granted", locks=self.locks)["locks"] == self.locks

    def go_on(self, after: float) -> None:
        """Who takes turns has another, and who keeps a lock can."""
        for one in self._elsewhere:
            one.call("await_turn", after=after)
        self._keeps.call("keep", lock=KEPT)

    def begin_again(self) -> tuple[_Turns, _Turns]:
        """Those who had lost the locks get them back from the others: what these had, and what they have now."""
        self._ask_holders("queue")
        others = _by_lock([self._waiter.call("give_back", locks=self.locks)])
        self._ask_holders("granted")
        return others, _by_lock(self._ask_holders("give_back"))

    def end(self) -> list[Turn]:
        """The turns elsewhere."""
        self._keeps.call("release", lock=KEPT)
        return turns_of(one.call("end_turns")["turns"] for one in self._elsewhere)

    def _ask_holders(self, do: str, **arguments: object) -> list[dict[str, Any]]:
        """All at the same time, each about its own locks."""
        for name, party in self._holders.items():
            party.send(do, locks=_locks(name), **arguments)
        return [party.receive() for party in self._holders.values()]


def _locks(holder: str) -> list[str]:
    return [f"{holder} {number}" for number in range(LOCKS)]


def _party(pool: WorkerPool, seat: Seat) -> Worker:
    return pool.start(seat.url, under=[*seat.host.under, "env", f"PYTHONPATH={PARTY.parents[3]}"])


def _by_lock(answers: Sequence[Mapping[str, Any]]) -> _Turns:
    return {lock: turn for answer in answers for lock, turn in answer["turns"].items()}
