"""Several leases that are one: lost together, given back together."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.core.engine import Engine
from holdfast.core.events import Event, logger
from holdfast.core.holds import HELD, OWED, RELEASING, Hold, OnLost, Phase
from holdfast.errors import BackendError, LockLost, NotHeld

if TYPE_CHECKING:
    from holdfast.core.ports import Runtime

_SHOWN_MAX = 3  # names in a message


def shown(names: Sequence[str]) -> str:
    """For messages: the first few of them."""
    more = len(names) - _SHOWN_MAX
    return " + ".join(names) if more <= 0 else f"{' + '.join(names[:_SHOWN_MAX])} + {more} more"


class Bundle:
    """Leases that are one. Each of them is a lease of its own to the keeper, which renews them in batches."""

    __slots__ = ("__weakref__", "_holds", "_hook", "_is_over", "_is_told", "_on_lost", "_runtime")

    def __init__(self, holds: Sequence[Hold], on_lost: OnLost, runtime: Runtime) -> None:
        self._holds = tuple(holds)
        self._on_lost = on_lost
        self._runtime = runtime
        self._is_told = False
        self._is_over = False  # lost, and its holder has been told so by a release
        self._hook: Callable[[], object] | None = None  # how `async with` cancels its body
        told = _WeakTold(self)
        for hold in self._holds:
            hold._hook = told
        if any(hold._phase is Phase.LOST for hold in self._holds):  # before there was anybody to tell
            self._lose_all()

    @property
    def names(self) -> tuple[str, ...]:
        """Of the locks, in the order in which they were taken."""
        return tuple(hold.name for hold in self._holds)

    @property
    def fences(self) -> dict[str, int]:
        """Each lock's own: the protected resources can refuse older ones."""
        return {hold.name: hold.fence for hold in self._holds}

    @property
    def remaining(self) -> float:
        """Seconds that are certainly left of all of them, by the local clock, if no renewal succeeds from now on."""
        return min(hold.remaining for hold in self._holds)

    @property
    def held(self) -> bool:
        """All taken, not given back, and none lost: the opposite is not always `lost`."""
        return not self.lost and all(hold._phase is Phase.HELD for hold in self._holds)

    @property
    def lost(self) -> bool:
        """One of them ended without having been released, and so all have. Once True, always True."""
        return any(hold.lost for hold in self._holds)  # the one that finds out tells, and takes the others with it

    @property
    def revoke_requested(self) -> bool:
        """Somebody asks for one of the locks. Only if they were made with `revocable`."""
        return any(hold._revoke_requested for hold in self._holds)

    def check(self) -> None:
        """Go on only if all leases are still ours.

        Raises:
            LockLost: one has ended or was taken, and so all are given up; stop touching the resources.
            NotHeld: they were released.
        """
        try:
            for hold in self._holds:
                hold.check()
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
        phases = {hold._phase for hold in self._holds}
        return next(phase for phase in _FROM_WORST if phase in phases)

    def _loss(self) -> LockLost:
        first = self._first_lost()
        others = shown([hold.name for hold in self._holds if hold is not first])
        reason = f"{first._reason} (and with it {others})" if others else first._reason
        return LockLost(lock=first.name, fence=first.fence, reason=reason)

    def _first_lost(self) -> Hold:
        """The one because of which all are: the others' reason names it."""
        lost = [hold for hold in self._holds if hold._phase is Phase.LOST]
        return next((hold for hold in lost if not hold._reason.startswith(_TOGETHER)), lost[0])

    def _lose_all(self) -> None:
        with self._holds[0]._engine.mutex:
            is_first, self._is_told = not self._is_told, True
        if not is_first:
            return
        first = self._first_lost()
        for hold in self._holds:
            hold._engine.lose(hold, f"{_TOGETHER} {first.name!r}, which was lost: {first._reason}")
        if self._hook is not None:
            self._hook()
        on_lost = self._on_lost
        if callable(on_lost):
            self._runtime.call(lambda: on_lost(self))


_FROM_WORST = (Phase.LOST, Phase.OWED, Phase.RELEASING, Phase.HELD, Phase.RELEASED)
_TOGETHER = "it was taken together with"


class _WeakTold:
    """How a lease tells its bundle that it was lost, without keeping it: one that is dropped runs out."""

    __slots__ = ("_bundle",)

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = weakref.ref(bundle)

    def __call__(self) -> None:
        bundle = self._bundle()
        if bundle is not None:
            bundle._lose_all()


async def release_all(bundle: Bundle) -> None:
    """Give all of them back, in one step for each store.

    Raises:
        NotHeld: they were released before.
        LockLost: one had ended or was taken before this release.
        BackendError: no answer; the keeper goes on trying, and so may the caller.
    """
    is_over = bundle._phase not in (Phase.HELD, Phase.OWED)  # read before `lost`, as in Hold.check
    if bundle.lost:
        _end_lost(bundle)
    if is_over:
        reason = bundle._holds[0]._reason or f"these leases were {bundle._phase.value} already"
        raise NotHeld(lock=shown(bundle.names), reason=reason)
    errors: list[BackendError] = []
    try:
        for engine, those in by_engine(bundle._holds):
            try:
                await _release(engine, those)
            except BackendError as error:
                errors.append(error)
    except BaseException:
        interrupted_releasing(bundle)
        raise
    if bundle.lost:
        _end_lost(bundle)
    if errors:
        raise errors[0]


def _end_lost(bundle: Bundle) -> NoReturn:
    for hold in bundle._holds:
        hold._engine._forget(hold)
    bundle._is_over = True
    raise bundle._loss()


async def _release(engine: Engine[Any], those: Sequence[Any]) -> None:
    """What is still to be given back of these. A loss stays one, and what another thread gives back is its own."""
    holds: list[Any] = []
    repeated: list[Any] = []
    silent: BackendError | None = None
    try:
        for hold in those:
            with engine.mutex:
                if hold._phase is HELD or hold._phase is OWED:
                    if hold._phase is OWED:
                        repeated.append(hold)
                    holds.append(hold)
                    hold._phase = RELEASING
        if not holds:
            return
        answers = await engine.backend.leave([hold._ticket for hold in holds], deadline=engine._limit())
        for hold, was_ours in zip(holds, answers, strict=True):
            if isinstance(was_ours, BackendError):
                engine.owe(hold)
                silent = was_ours
            elif was_ours or hold in repeated:
                engine._keeper.forgive(hold._ticket)
                engine._unpublish(hold, Phase.RELEASED)
            else:
                engine.gone(hold)
    except BackendError:
        for hold in holds:
            engine.owe(hold)
        raise
    now = engine.runtime.now()
    for hold in holds:
        if hold._lost_event is not None:
            hold._lost_event.set()  # who waits for a loss need not wait any longer
        if hold._phase is Phase.RELEASED and engine.events.subscribers:
            engine.emit(Event("released", hold.name, hold.fence, now - hold._since))
    if silent is not None:
        raise silent


async def leave_body(bundle: Bundle) -> None:
    """Release at the end of a `with` body, which ran under all of the locks to its end if this returns.

    Raises:
        LockLost: a lease ended before the body did.
    """
    try:
        await release_all(bundle)
    except BackendError as error:
        logger().warning("release of %r got no answer, trying again in the background: %s", shown(bundle.names), error)


def interrupted_releasing(bundle: Bundle) -> None:
    """What has begun is finished by the keeper, for all of them. What has not is still held, and can be released."""
    if bundle._worst is not Phase.HELD:
        for hold in bundle._holds:
            if hold._phase in (Phase.HELD, Phase.RELEASING, Phase.OWED):
                hold._engine.owe(hold)


def interrupted_leaving(bundle: Bundle) -> None:
    """A KeyboardInterrupt hit `__exit__`; if before the release took effect, the body is over all the same."""
    for hold in bundle._holds:
        hold._engine.interrupted_leaving(hold)


async def renew_all(bundle: Bundle) -> None:
    """Prolong all of them now, in one step for each store.

    Raises:
        LockLost, NotHeld: there is nothing to prolong.
        BackendError: no answer; the old deadlines still stand.
    """
    bundle.check()
    for engine, those in by_engine(bundle._holds):
        with suppress(LockLost):  # told below, of all of them
            await engine.renew(*those)
    bundle.check()


def by_engine(holds: Sequence[Hold]) -> list[tuple[Engine[Any], list[Any]]]:
    """Each client, and those that are its own."""
    by_serial = sorted(holds, key=lambda hold: hold._engine._serial)
    return [(engine, list(those)) for engine, those in groupby(by_serial, key=lambda hold: hold._engine)]
