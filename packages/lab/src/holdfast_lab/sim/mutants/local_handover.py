"""Local hand-overs with one bug each: of the engine's part, and of the requests to each store."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.backends.redis.protocol.queue import _EXTEND_TURN, _RELEASE
from holdfast.core import straight_path
from holdfast.core.clock import DRIFT
from holdfast.core.engine import Engine
from holdfast.core.local_handover import LocalHandover
from holdfast.core.tickets import Claim
from holdfast.errors import BackendError
from holdfast_lab.sim.client import SimLease
from holdfast_lab.sim.mutants.base import Mutant
from holdfast_lab.sim.mutants.engine import edited
from holdfast_lab.sim.servers.mysql import server as mysql
from holdfast_lab.sim.servers.mysql import tables as mysql_tables
from holdfast_lab.sim.servers.postgresql import server as postgresql
from holdfast_lab.sim.servers.postgresql import tables as postgresql_tables
from holdfast_lab.sim.servers.redis.server import LocalHandoverServer

if TYPE_CHECKING:
    from holdfast.core.ports import QueuesAtRelease
    from holdfast.core.tickets import Granted, Waiting
    from holdfast_lab.sim.servers.base import Server


class _Engine(Engine[SimLease]):
    pass


class PassesOldAnswers(LocalHandover):
    """Passes leases on however old the last answer of the server is."""

    def _pass(self, claim: Claim) -> bool:
        local = self.queues.get(claim.name)
        if local is not None and local.deadline:
            local.usable_until = float("inf")
        return super()._pass(claim)


class DeadlineFromPass(LocalHandover):
    """The deadline of a lease that is passed on counts from the pass, not from the last answer of the server."""

    def _pass(self, claim: Claim) -> bool:
        local = self.queues.get(claim.name)
        if local is not None and local.deadline:
            local.deadline = self._runtime.now() + local.ttl * (1 - DRIFT)
            local.usable_until = float("inf")
        return super()._pass(claim)


class PassesLostLeases(LocalHandover):
    """Every release passes the lease on, also that of a lost one."""

    async def release(self, claims: Sequence[Claim], *, deadline: float) -> Sequence[bool | BackendError]:
        outcomes: list[bool | BackendError] = []
        for claim in claims:
            with self._mutex:
                is_passed = claim.passable and claim.is_granted and self._pass(claim)
            outcomes.append(is_passed or (await super().release([claim], deadline=deadline))[0])
        return outcomes


class TwoHolders(LocalHandover):
    """A pass does not wait for the release of the lease: the next caller gets it when it begins to wait."""

    def wait(self, claim: Claim, until: float) -> Coroutine[Any, Any, None]:
        active = self.active.get(claim.name)
        if claim.passable and active is not None and active is not claim:
            with self._mutex:
                self._pass(active)
        return super().wait(claim, until)


class ReleasesSharedTicket(LocalHandover):
    """A repeated release of a ticket releases it on the server, although another caller uses it now."""

    def _ended(self, claim: Claim, *, is_known: bool = True) -> Claim | None:
        ticket = super()._ended(claim, is_known=is_known)
        return claim if ticket is None and claim.server is None and claim.is_granted else ticket

    async def _pass_on(self, claim: Claim, deadline: float) -> Sequence[bool | BackendError]:
        outcomes = await super()._pass_on(claim, deadline)
        self._engine._keeper.schedule(claim)  # as after an interrupt
        return outcomes


class NeverYields(LocalHandover):
    """A turn does not end while callers wait locally."""

    async def _pass_on(self, claim: Claim, deadline: float) -> Sequence[bool | BackendError]:
        local = self.queues.get(claim.name)
        if local is not None:
            local.passes_left = len(local.waiting)
        return await super()._pass_on(claim, deadline)


class OnePassTooMany(LocalHandover):
    """A turn has one pass more than callers that waited when the lease arrived."""

    async def try_acquire(self, claim: Claim, *, queue: bool, deadline: float) -> Granted | Waiting:
        outcome = await super().try_acquire(claim, queue=queue, deadline=deadline)
        local = self.queues.get(claim.name)
        if claim.is_granted and claim.passed is None and local is not None:
            local.passes_left += 1
        return outcome


class UsesFencesOfOthers(LocalHandover):
    """A client uses more fences than a hand-over has reserved for its callers."""

    def begin_turn(self, claim: Claim, granted: Granted | None = None) -> None:
        reserved = (claim.server or claim).reserved
        super().begin_turn(claim, granted)
        local = self.queues.get(claim.name)
        if reserved and local is not None:
            local.passes_left = len(local.waiting)
            local.last += 4


class PassesForCallersThatGaveUp(LocalHandover):
    """A turn has as many passes as fences were reserved, although fewer callers wait when the lease arrives."""

    def begin_turn(self, claim: Claim, granted: Granted | None = None) -> None:
        reserved = (claim.server or claim).reserved
        super().begin_turn(claim, granted)
        local = self.queues.get(claim.name)
        if reserved and local is not None:
            local.last = local.fence + reserved


class GaveUpStaysActive(LocalHandover):
    """A caller that gives up while it waits at the server leaves the other callers without one that polls."""

    def _promote(self, name: str, ticket: Claim | None) -> None:
        if ticket is None:
            super()._promote(name, ticket)


class ForgetsWaitingCallers(LocalHandover):
    """A caller that waits in the process is treated as another client when a renewal has changed the holder's ttl."""

    def _queue_locally(self, claim: Claim, queue: bool) -> Granted | Waiting | None:  # noqa: FBT001
        active = self.active.get(claim.name)
        if active is not None and active is not claim and active.ttl != claim.ttl:
            claim.passable = False
            return None
        return super()._queue_locally(claim, queue)


class ReleasesQueuedTicket(LocalHandover):
    """The ticket that the end of a turn has queued is released, although a caller uses it now."""

    async def _release_and_queue(
        self, backend: QueuesAtRelease, claim: Claim, successor: Claim, deadline: float
    ) -> Sequence[bool | BackendError]:
        outcomes = await super()._release_and_queue(backend, claim, successor, deadline)
        active = self.active.get(claim.name)
        if active is not None and active.server is not None:
            active.server.passable = False
            self._engine._keeper.schedule(active.server)
        return outcomes


class StraightStaysActive(_Engine):
    """After a release on the straight path, its ticket stays the active one, which other callers wait for."""

    release_straight = edited(
        straight_path.release_straight,
        "if path.active.get(path.name) is claim:",
        "if path.name in path.queues and path.active.get(path.name) is claim:",
    )


class StraightRefusedStaysActive(_Engine):
    """After a request of the straight path that was not sent, its ticket stays the active one."""

    acquire_straight = edited(straight_path.acquire_straight, "local.note_error(claim, error)", "pass")


class FencesNotReserved(LocalHandoverServer):
    """The server does not count the fences that it reserves."""

    texts: ClassVar[Mapping[str, str]] = {
        _EXTEND_TURN.name: _EXTEND_TURN.text.replace("redis.call('SET', watermark, last)", "")
    }


class HandoverNotReserved(LocalHandoverServer):
    """A hand-over does not count the fences that it reserves for the callers of the next client."""

    texts: ClassVar[Mapping[str, str]] = {
        _RELEASE.name: _RELEASE.text.replace("redis.call('SET', watermark, last)", "")
    }


class ExtendsAnyTicket(LocalHandoverServer):
    """The server extends a turn that is over."""

    texts: ClassVar[Mapping[str, str]] = {
        _EXTEND_TURN.name: _EXTEND_TURN.text.replace("if not is_held_by(nonce, value) then", "if not value then")
    }


class PostgresqlFencesNotReserved(postgresql_tables.Tables):
    """The server does not count the fences that it reserves."""

    def last_reserved(self, first: int, fences: int) -> int:
        return first


class PostgresqlExtendsAnyTicket(postgresql_tables.Tables):
    """The server extends a turn that is over."""

    def is_extendable(self, lock: postgresql_tables.Lock, nonce: str, now: int) -> bool:
        return lock.nonce is not None


class MysqlFencesNotReserved(mysql_tables.Tables):
    """The server does not count the fences that it reserves."""

    def last_reserved(self, first: int, fences: int) -> int:
        return first


class MysqlExtendsAnyTicket(mysql_tables.Tables):
    """The server extends a turn that is over."""

    def is_extendable(self, lock: mysql_tables.Lock, nonce: str, now: int) -> bool:
        return lock.nonce is not None


def _straight_mutant(name: str, engine: type[_Engine]) -> Mutant:
    return Mutant(
        name=f"local-straight-{name}",
        mistake=(engine.__doc__ or "").strip(),
        backend="redis-local",
        engine=engine,
        workload="free_callers",
    )


def _mutant(
    name: str,
    handover: type[LocalHandover],
    kinds: frozenset[str] | None = None,
    *,
    workload: str = "callers",
    backend: str = "redis-local",
) -> Mutant:
    engine = type(handover.__name__ + "Engine", (_Engine,), {"local_handover_type": handover})
    return Mutant(
        name=f"local-{name}",
        mistake=(handover.__doc__ or "").strip(),
        backend=backend,
        engine=engine,
        workload=workload,
        kinds=kinds,
    )


def _server_mutant(
    name: str,
    server: type[Server],
    mistake: str | None,
    store: str = "redis",
    *,
    workload: str = "callers",
    kinds: frozenset[str] | None = None,
) -> Mutant:
    return Mutant(
        name=f"local-{name}" if store == "redis" else f"{store}-local-{name}",
        mistake=(mistake or "").strip(),
        backend=f"{store}-local",
        server=server,
        workload=workload,
        kinds=kinds,
    )


def _postgresql_mutant(name: str, tables: type[postgresql_tables.Tables]) -> Mutant:
    server = type("Mutated", (postgresql.LocalHandoverServer,), {"tables_type": tables})
    return _server_mutant(name, server, tables.__doc__, "postgresql")


def _mysql_mutant(name: str, tables: type[mysql_tables.Tables]) -> Mutant:
    server = type("Mutated", (mysql.LocalHandoverServer,), {"tables_type": tables})
    return _server_mutant(name, server, tables.__doc__, "mysql")


# A clock that is set back, because a fence is at least the time of the server, which is usually ahead of a range.
_STEPS = frozenset({"step_clock"})

LOCAL_HANDOVER = (
    _mutant("old-answers", PassesOldAnswers, frozenset({"break_lock"})),
    _mutant("deadline-from-pass", DeadlineFromPass, frozenset({"pause", "cut"})),
    _mutant("lost-leases", PassesLostLeases),
    _mutant("two-holders", TwoHolders),
    _mutant("shared-ticket-released", ReleasesSharedTicket),
    _mutant("never-yields", NeverYields),
    _mutant("one-pass-too-many", OnePassTooMany),
    _mutant("uses-fences-of-others", UsesFencesOfOthers, workload="brief_callers"),
    _mutant("passes-for-callers-that-gave-up", PassesForCallersThatGaveUp, workload="brief_callers"),
    _mutant("gave-up-stays-active", GaveUpStaysActive),
    _mutant("forgets-waiting-callers", ForgetsWaitingCallers, workload="callers_renew"),
    _mutant("queued-ticket-released", ReleasesQueuedTicket, backend="postgresql-local"),
    _straight_mutant("stays-active", StraightStaysActive),
    _straight_mutant("refused-stays-active", StraightRefusedStaysActive),
    _server_mutant("fences-not-reserved", FencesNotReserved, FencesNotReserved.__doc__),
    _server_mutant(
        "hand-over-not-reserved",
        HandoverNotReserved,
        HandoverNotReserved.__doc__,
        workload="brief_callers",
        kinds=_STEPS,
    ),
    _server_mutant("extends-any-ticket", ExtendsAnyTicket, ExtendsAnyTicket.__doc__),
    _postgresql_mutant("fences-not-reserved", PostgresqlFencesNotReserved),
    _postgresql_mutant("extends-any-ticket", PostgresqlExtendsAnyTicket),
    _mysql_mutant("fences-not-reserved", MysqlFencesNotReserved),
    _mysql_mutant("extends-any-ticket", MysqlExtendsAnyTicket),
)
