"""Which session a ticket's node belongs to. The timeout follows the ttl: a dead holder's lock is free when it ends.

A client has at most CLASSES_MAX sessions at a time, one for each requested timeout, because the servers limit the
connections from one host (`maxClientCnxns`, 60 by default). While there is room, a ticket gets a session of exactly its
ttl. If the first two are longer than LAST_MAX, the last one is of LAST_MAX, so that any later ttl of at least LAST_MAX
gets a session that is not longer than itself. By default no server grants less than that (two tickTimes of 2 s).
"""

from __future__ import annotations

from collections.abc import Collection

CLASSES_MAX = 3
LAST_MAX = 4.0  # seconds
TIMEOUT_MIN, TIMEOUT_MAX = 0.5, 3600.0  # seconds: limits of the requested timeout


def timeout_for(ttl: float, present: Collection[float]) -> float:
    """The timeout to request for a ticket, given the timeouts of the open sessions."""
    wanted = min(max(ttl, TIMEOUT_MIN), TIMEOUT_MAX)
    if wanted in present or len(present) < CLASSES_MAX - 1:
        return wanted
    if len(present) < CLASSES_MAX:
        return wanted if min(wanted, *present) <= LAST_MAX else LAST_MAX
    # The longest that ends in time; if all are too long, the shortest.
    return max((timeout for timeout in present if timeout <= wanted), default=min(present))
