"""When a lease ends for its holder: always before the server can let anyone else in.

Let `sent` be read just *before* the request that (re)starts the server's timer is written. The server starts counting
no earlier, so its timer cannot end before `sent + ttl` on a clock that runs at most `DRIFT` fast against ours. A
holder that stops at

    deadline = sent + ttl * (1 - DRIFT) - granularity

stops first. Only clock rates matter here, never offsets.
"""

from __future__ import annotations

DRIFT = 0.01


def before_delay(deadline: float, delay: float) -> float:
    """The same for a lease whose ttl on the server has a lock's delay in it, for which the lease is over already."""
    return deadline - delay * (1 - DRIFT)


def lease_deadline(sent: float, ttl: float, granularity: float) -> float:
    """The local time until which a lease may be believed; granularity is how early the store may expire it."""
    return sent + ttl * (1 - DRIFT) - granularity
