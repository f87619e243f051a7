"""Shared by the backends whose clients can pass a lease on between their callers (core/local_handover.py)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from holdfast.errors import BackendUnavailable
from holdfast.url_parts import flag

if TYPE_CHECKING:
    from holdfast.core.ports import Runtime

LOCAL_HANDOVER = flag(
    "local_handover",
    "yes",
    "threads or tasks of one client pass the lock on without the server; `no`: strict FIFO",
)
BREAK_PAUSE = 0.1  # seconds between requests to break a lease that is passed on


async def break_in_use(
    request: Callable[[], Coroutine[Any, Any, bool | tuple[int, int]]],
    *,
    name: str,
    url: str,
    runtime: Runtime,
    deadline: float,
) -> bool:
    """Break a lease by one of its fences. Returns whether that fence was in use.

    `request` breaks the lease, or returns the first and the last fence of a range if the client uses one of them. At
    its next renewal, the client reports which one it uses, unless it uses later fences by then.

    Raises:
        BackendUnavailable: the client has not reported the fence before the deadline.
    """
    while True:
        outcome = await request()
        if isinstance(outcome, bool):
            return outcome
        if runtime.now() + BREAK_PAUSE >= deadline:
            first, last = outcome
            problem = (
                f"the holder of {name!r} passes it on between its threads or tasks with the fences {first} to "
                f"{last}, and has not reported which one is in use: try again, or break all of them by force"
            )
            raise BackendUnavailable(backend=url, problem=problem)
        await runtime.sleep(BREAK_PAUSE)
