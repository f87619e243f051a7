"""When a lease ends for its holder: always before the server can grant the lock to another client.

Let `sent` be read just *before* the request that (re)starts the server's timer is written. The server starts its timer
no earlier, so the timer cannot end before `sent + ttl` on a clock that runs at most `DRIFT` faster than the local one.
A holder that stops at

    deadline = sent + ttl * (1 - DRIFT) - granularity

stops first. Only the rates of clocks matter, not their offsets.
"""

from __future__ import annotations

DRIFT = 0.01
GRANULARITY_MAX = 0.002  # seconds: of all stores


def before_delay(deadline: float, delay: float) -> float:
    """The end of a lease whose ttl on the server includes the delay of the lock, during which the lease is over."""
    return deadline - delay * (1 - DRIFT)


def ttl_for(seconds: float) -> float:
    """The ttl of a ticket that has to stay on the server for at least this many seconds of the local clock."""
    return seconds / (1 - DRIFT) + GRANULARITY_MAX


def lease_deadline(sent: float, ttl: float, granularity: float) -> float:
    """The local time at which a lease ends for its holder. The store may expire it `granularity` seconds early."""
    return sent + ttl * (1 - DRIFT) - granularity
