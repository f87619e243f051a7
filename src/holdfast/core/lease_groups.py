"""Several leases as one: they are lost together and released together."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.core.engine import Engine
from holdfast.core.events import logger
from holdfast.core.leases import BaseLease, OnLost, Phase
from holdfast.errors import BackendError, LockLost, NotHeld

if TYPE_CHECKING:
    from holdfast.core.ports import Runtime

_SHOWN_MAX = 3  # names in a message


def shown(names: Sequence[str]) -> str:
    """The first few names, for messages."""
    more = len(names) - _SHOWN_MAX
    return " + ".join(names) if more <= 0 else f"{' + '.join(names[:_SHOWN_MAX])} + {more} more"


class LeaseGroup:
    """Several leases as one. The keeper treats each as a lease of its own and renews them in batches."""

    __slots__ = ("__weakref__", "_hook", "_is_over", "_is_reported", "_leases", "_on_lost", "_runtime")

    def __init__(self, leases: Sequence[BaseLease], on_lost: OnLost, runtime: Runtime) -> None:
        self._leases = tuple(leases)
        self._on_lost = on_lost
        self._runtime = runtime
        self._is_reported = False
        self._is_over = False  # lost, and a release has reported it to the holder
        self._hook: Callable[[], object] | None = None  # called at a loss: `async with` cancels its body by it
        group_ref = weakref.ref(self)  # weak, so that a dropped group expires

        def lose_all() -> None:
            group = group_ref()
            if group is not None:
                group._lose_all()

        for lease in self._leases:
            lease._hook = lose_all
        if any(lease._phase is Phase.LOST for lease in self._leases):  # before the hook was set
            self._lose_all()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the locks, in the order in which they were acquired."""
        return tuple(lease.name for lease in self._leases)

    @property
    def fences(self) -> dict[str, int]:
        """The fence of each lock. The protected resources can refuse older ones."""
        return {lease.name: lease.fence for lease in self._leases}

    @property
    def remaining(self) -> float:
        """Seconds until the first lease ends, by the local clock, if no renewal succeeds from now on."""
        return min(lease.remaining for lease in self._leases)

    @property
    def held(self) -> bool:
        """All acquired, not released, and none lost. The opposite is not always `lost`."""
        return not self.lost and all(lease._phase is Phase.HELD for lease in self._leases)

    @property
    def lost(self) -> bool:
        """One of them ended before it was released, and so all are lost. Once True, always True."""
        return any(lease.lost for lease in self._leases)

    @property
    def revoke_requested(self) -> bool:
        """A client has requested one of the locks. Only for locks with `revocable`."""
        return any(lease._revoke_requested for lease in self._leases)

    def check(self) -> None:
        """Raise unless all leases are held.

        Raises:
            LockLost: one has ended or was broken, and so all are lost; stop using the resources.
            NotHeld: they were released.
        """
        try:
            for lease in self._leases:
                lease.check()
        except LockLost:
            if self._worst is not Phase.LOST:
                raise  # on a thread beside the loop: the end of the others is scheduled there
            raise self._loss() from None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {shown(self.names)!r} {self._worst.value}>"

    @property
    def _phase(self) -> Phase:
        return Phase.RELEASED if self._is_over else self._worst

    @property
    def _worst(self) -> Phase:
        phases = {lease._phase for lease in self._leases}
        return next(phase for phase in _FROM_WORST if phase in phases)

    def _loss(self) -> LockLost:
        first = self._first_lost()
        others = shown([lease.name for lease in self._leases if lease is not first])
        reason = f"{first._reason} (and with it {others})" if others else first._reason
        return LockLost(lock=first.name, fence=first.fence, reason=reason)

    def _first_lost(self) -> BaseLease:
        """The lease that was lost by itself. The reasons of the others name it."""
        lost = [lease for lease in self._leases if lease._phase is Phase.LOST]
        return next((lease for lease in lost if not lease._reason.startswith(_TOGETHER)), lost[0])

    def _lose_all(self) -> None:
        with self._leases[0]._engine.mutex:
            is_first, self._is_reported = not self._is_reported, True
        if not is_first:
            return
        first = self._first_lost()
        for lease in self._leases:
            reason = f"{_TOGETHER} {first.name!r}, which was lost: {first._reason}"
            lease._engine.lose(lease, reason, "together")
        if self._hook is not None:
            self._hook()
        on_lost = self._on_lost
        if callable(on_lost):
            self._runtime.call(lambda: on_lost(self))


_FROM_WORST = (Phase.LOST, Phase.UNCONFIRMED, Phase.RELEASING, Phase.HELD, Phase.RELEASED)
_TOGETHER = "it was acquired together with"


async def release_all(group: LeaseGroup) -> None:
    """Release all leases, in one request for each store.

    Raises:
        NotHeld: they were released before.
        LockLost: one had ended or was broken before this release.
        BackendError: no answer; the keeper repeats the release, and the caller may do so too.
    """
    # Read before `lost`, so that a loss after this line is not reported as NotHeld.
    is_over = group._phase not in (Phase.HELD, Phase.UNCONFIRMED)
    if group.lost:
        _end_lost(group)
    if is_over:
        reason = group._leases[0]._reason or f"these leases were {group._phase.value} already"
        raise NotHeld(lock=shown(group.names), reason=reason)
    errors: list[BackendError] = []
    try:
        for engine, leases in by_engine(group._leases):
            try:
                await engine.release_many(leases)
            except BackendError as error:
                errors.append(error)
    except BaseException:
        interrupted_releasing(group)
        raise
    if group.lost:
        _end_lost(group)
    if errors:
        raise errors[0]


def _end_lost(group: LeaseGroup) -> NoReturn:
    for lease in group._leases:
        if lease.lost:
            lease._engine.expire(lease)  # its deadline may have passed before the timer reported it
    for lease in group._leases:
        lease._engine.end_lost_body(lease)
    group._is_over = True
    raise group._loss()


async def release_after_body(group: LeaseGroup) -> None:
    """Release at the end of a `with` body. If this returns, the whole body ran under all locks.

    Raises:
        LockLost: a lease ended before the body.
    """
    try:
        await release_all(group)
    except BackendError as error:
        logger().warning("release of %r got no answer, trying again in the background: %s", shown(group.names), error)


def interrupted_releasing(group: LeaseGroup) -> None:
    """The keeper finishes a release that has begun, for all leases. If none has begun, all are still held."""
    if group._worst is not Phase.HELD:
        for lease in group._leases:
            if lease._phase in (Phase.HELD, Phase.RELEASING, Phase.UNCONFIRMED):
                lease._engine.unconfirmed(lease)


async def renew_all(group: LeaseGroup, ttl: float | None = None) -> None:
    """Renew all leases now, in one request for each store; with `ttl`, for that long.

    Raises:
        LockLost, NotHeld: a lease is not held.
        BackendError: no answer; the old deadlines stay, or with `ttl` the earlier ones.
    """
    group.check()
    for engine, leases in by_engine(group._leases):
        with suppress(LockLost):  # raised below, for all leases
            await engine.renew(*leases, ttl=ttl)
    group.check()


def by_engine(leases: Sequence[BaseLease]) -> list[tuple[Engine[Any], list[Any]]]:
    """The engines of these leases, each with its leases."""
    by_serial = sorted(leases, key=lambda lease: lease._engine._serial)
    return [(engine, list(group)) for engine, group in groupby(by_serial, key=lambda lease: lease._engine)]
