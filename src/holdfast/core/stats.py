"""Numbers about the present state of a client, for gauges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from holdfast.core.leases import BaseLease


class GroupStats(NamedTuple):
    """The locks of one group. Times are in seconds; 0 if there is none."""

    held: int = 0
    waiting: int = 0
    oldest_hold: float = 0.0
    oldest_wait: float = 0.0
    leading: int = 0  # leases of elections among those held


class Stats(NamedTuple):
    """The state of one client in this process."""

    held: int = 0  # leases that are held, by the local clock
    waiting: int = 0  # calls that have not acquired their lock yet
    oldest_hold: float = 0.0  # seconds
    oldest_wait: float = 0.0
    pending_releases: int = 0  # releases that the keeper repeats until the server answers
    groups: Mapping[str, GroupStats] = MappingProxyType({})


def make_stats(
    holding: Iterable[tuple[str, BaseLease]], waiting: Iterable[tuple[str, float]], pending_releases: int, now: float
) -> Stats:
    """Add up leases, and calls with the time at which they began, each with its group."""
    groups: dict[str, GroupStats] = {}
    for group, lease in holding:
        stats = groups.get(group, GroupStats())
        groups[group] = stats._replace(
            held=stats.held + 1,
            oldest_hold=max(stats.oldest_hold, now - lease._since),
            leading=stats.leading + (lease._spec.primitive == "election"),
        )
    for group, started in waiting:
        stats = groups.get(group, GroupStats())
        groups[group] = stats._replace(waiting=stats.waiting + 1, oldest_wait=max(stats.oldest_wait, now - started))
    return Stats(
        held=sum(stats.held for stats in groups.values()),
        waiting=sum(stats.waiting for stats in groups.values()),
        oldest_hold=max((stats.oldest_hold for stats in groups.values()), default=0.0),
        oldest_wait=max((stats.oldest_wait for stats in groups.values()), default=0.0),
        pending_releases=pending_releases,
        groups=MappingProxyType(groups),
    )
