"""Several leases that are one: lost together, given back together."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.core.engine import Engine
from holdfast.core.events import Event, logger
from holdfast.core.leases import HELD, RELEASING, UNCONFIRMED, BaseLease, OnLost, Phase
from holdfast.errors import BackendError, LockLost, NotHeld

if TYPE_CHECKING:
    from holdfast.core.ports import Runtime

_SHOWN_MAX = 3  # names in a message


def shown(names: Sequence[str]) -> str:
    """For messages: the first few of them."""
    more = len(names) - _SHOWN_MAX
    return " + ".join(names) if more <= 0 else f"{' + '.join(names[:_SHOWN_MAX])} + {more} more"


class LeaseGroup:
    """Leases that are one. Each of them is a lease of its own to the keeper, which renews them in batches."""

    __slots__ = ("__weakref__", "_hook", "_is_over", "_is_told", "_leases", "_on_lost", "_runtime")

    def __init__(self, leases: Sequence[BaseLease], on_lost: OnLost, runtime: Runtime) -> None:
        self._leases = tuple(leases)
        self._on_lost = on_lost
        self._runtime = runtime
        self._is_told = False
        self._is_over = False  # lost, and its holder has been told so by a release
        self._hook: Callable[[], object] | None = None  # how `async with` cancels its body
        told = _WeakTold(self)
        for lease in self._leases:
            lease._hook = told
        if any(lease._phase is Phase.LOST for lease in self._leases):  # before there was anybody to tell
            self._lose_all()

    @property
    def names(self) -> tuple[str, ...]:
        """Of the locks, in the order in which they were taken."""
        return tuple(lease.name for lease in self._leases)

    @property
    def fences(self) -> dict[str, int]:
        """Each lock's own: the protected resources can refuse older ones."""
        return {lease.name: lease.fence for lease in self._leases}

    @property
    def remaining(self) -> float:
        """Seconds that are certainly left of all of them, by the local clock, if no renewal succeeds from now on."""
        return min(lease.remaining for lease in self._leases)

    @property
    def held(self) -> bool:
        """All taken, not given back, and none lost: the opposite is not always `lost`."""
        return not self.lost and all(lease._phase is Phase.HELD for lease in self._leases)

    @property
    def lost(self) -> bool:
        """One of them ended without having been released, and so all have. Once True, always True."""
        return any(lease.lost for lease in self._leases)  # the one that finds out tells, and takes the others with it

    @property
    def revoke_requested(self) -> bool:
        """Somebody asks for one of the locks. Only if they were made with `revocable`."""
        return any(lease._revoke_requested for lease in self._leases)

    def check(self) -> None:
        """Go on only if all leases are still ours.

        Raises:
            LockLost: one has ended or was taken, and so all are given up; stop touching the resources.
            NotHeld: they were released.
        """
        try:
            for lease in self._leases:
                lease.check()
        except LockLost:
            if self._worst is not Phase.LOST:
                raise  # in a thread beside the loop, which has been asked to give them all up
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
        """The one because of which all are: the others' reason names it."""
        lost = [lease for lease in self._leases if lease._phase is Phase.LOST]
        return next((lease for lease in lost if not lease._reason.startswith(_TOGETHER)), lost[0])

    def _lose_all(self) -> None:
        with self._leases[0]._engine.mutex:
            is_first, self._is_told = not self._is_told, True
        if not is_first:
            return
        first = self._first_lost()
        for lease in self._leases:
            lease._engine.lose(lease, f"{_TOGETHER} {first.name!r}, which was lost: {first._reason}")
        if self._hook is not None:
            self._hook()
        on_lost = self._on_lost
        if callable(on_lost):
            self._runtime.call(lambda: on_lost(self))


_FROM_WORST = (Phase.LOST, Phase.UNCONFIRMED, Phase.RELEASING, Phase.HELD, Phase.RELEASED)
_TOGETHER = "it was taken together with"


class _WeakTold:
    """How a lease tells its bundle that it was lost, without keeping it: one that is dropped runs out."""

    __slots__ = ("_group",)

    def __init__(self, group: LeaseGroup) -> None:
        self._group = weakref.ref(group)

    def __call__(self) -> None:
        group = self._group()
        if group is not None:
            group._lose_all()


async def release_all(group: LeaseGroup) -> None:
    """Give all of them back, in one step for each store.

    Raises:
        NotHeld: they were released before.
        LockLost: one had ended or was taken before this release.
        BackendError: no answer; the keeper goes on trying, and so may the caller.
    """
    is_over = group._phase not in (Phase.HELD, Phase.UNCONFIRMED)  # read before `lost`, as in Hold.check
    if group.lost:
        _end_lost(group)
    if is_over:
        reason = group._leases[0]._reason or f"these leases were {group._phase.value} already"
        raise NotHeld(lock=shown(group.names), reason=reason)
    errors: list[BackendError] = []
    try:
        for engine, those in by_engine(group._leases):
            try:
                await _release(engine, those)
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
        lease._engine.end_lost_body(lease)
    group._is_over = True
    raise group._loss()


async def _release(engine: Engine[Any], those: Sequence[Any]) -> None:
    """What is still to be given back of these. A loss stays one, and what another thread gives back is its own."""
    leases: list[Any] = []
    repeated: list[Any] = []
    silent: BackendError | None = None
    try:
        for lease in those:
            with engine.mutex:
                if lease._phase is HELD or lease._phase is UNCONFIRMED:
                    if lease._phase is UNCONFIRMED:
                        repeated.append(lease)
                    leases.append(lease)
                    lease._phase = RELEASING
        if not leases:
            return
        answers = await engine.backend.release([lease._ticket for lease in leases], deadline=engine._limit())
        for lease, was_ours in zip(leases, answers, strict=True):
            if isinstance(was_ours, BackendError):
                engine.owe(lease)
                silent = was_ours
            elif was_ours or lease in repeated:
                engine._keeper.cancel(lease._ticket)
                engine._unpublish(lease, Phase.RELEASED)
            else:
                engine.lease_gone(lease)
    except BackendError:
        for lease in leases:
            engine.owe(lease)
        raise
    now = engine.runtime.now()
    for lease in leases:
        if lease._lost_event is not None:
            lease._lost_event.set()  # who waits for a loss need not wait any longer
        if lease._phase is Phase.RELEASED and engine.events.subscribers:
            engine.emit(Event("released", lease.name, lease.fence, now - lease._since))
    if silent is not None:
        raise silent


async def release_after_body(group: LeaseGroup) -> None:
    """Release at the end of a `with` body, which ran under all of the locks to its end if this returns.

    Raises:
        LockLost: a lease ended before the body did.
    """
    try:
        await release_all(group)
    except BackendError as error:
        logger().warning("release of %r got no answer, trying again in the background: %s", shown(group.names), error)


def interrupted_releasing(group: LeaseGroup) -> None:
    """What has begun is finished by the keeper, for all of them. What has not is still held, and can be released."""
    if group._worst is not Phase.HELD:
        for lease in group._leases:
            if lease._phase in (Phase.HELD, Phase.RELEASING, Phase.UNCONFIRMED):
                lease._engine.owe(lease)


def interrupted_exit(group: LeaseGroup) -> None:
    """A KeyboardInterrupt hit `__exit__`; if before the release took effect, the body is over all the same."""
    for lease in group._leases:
        lease._engine.interrupted_exit(lease)


async def renew_all(group: LeaseGroup) -> None:
    """Prolong all of them now, in one step for each store.

    Raises:
        LockLost, NotHeld: there is nothing to prolong.
        BackendError: no answer; the old deadlines still stand.
    """
    group.check()
    for engine, those in by_engine(group._leases):
        with suppress(LockLost):  # told below, of all of them
            await engine.renew(*those)
    group.check()


def by_engine(leases: Sequence[BaseLease]) -> list[tuple[Engine[Any], list[Any]]]:
    """Each client, and those that are its own."""
    by_serial = sorted(leases, key=lambda lease: lease._engine._serial)
    return [(engine, list(those)) for engine, those in groupby(by_serial, key=lambda lease: lease._engine)]
