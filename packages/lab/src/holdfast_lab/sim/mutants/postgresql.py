"""The postgresql protocols with one bug each: common mistakes with rows and with sessions as locks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.backends.postgresql.port import Statement
from holdfast.backends.postgresql.protocol import advisory, queue
from holdfast.backends.postgresql.protocol.advisory import AdvisoryBackend
from holdfast.backends.postgresql.protocol.queue import PostgresqlBackend
from holdfast.backends.sql_protocol import us
from holdfast_lab.sim.mutants.base import Mutant
from holdfast_lab.sim.servers.postgresql.server import PostgresqlServer
from holdfast_lab.sim.servers.postgresql.tables import Lock, Register, StoredRecord, Tables, Ticket, items
from holdfast_lab.sim.servers.postgresql.waiter_sessions import AdvisoryServer

if TYPE_CHECKING:
    from holdfast.backends.postgresql.port import PostgresqlPort, Row, Value, WaiterSession
    from holdfast.core.ports import Runtime
    from holdfast.core.tickets import Claim
    from holdfast_lab.sim.faults import Faults
    from holdfast_lab.sim.process import Process
    from holdfast_lab.sim.recorder import Recorder
    from holdfast_lab.sim.servers.postgresql.port import SimPort
    from holdfast_lab.sim.world import World


def _advisory(tables: type[Tables]) -> type[AdvisoryServer]:
    return type("Mutated", (AdvisoryServer,), {"tables_type": tables})


def _server(tables: type[Tables], **more: Any) -> type[PostgresqlServer]:
    return type("Mutated", (PostgresqlServer,), {"tables_type": tables, **more})


class _Port:
    """A port that sends other statements."""

    def __init__(self, port: PostgresqlPort, runtime: Runtime) -> None:
        self._port = port
        self._runtime = runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)


def _with_port(port_type: type[_Port]) -> Callable[..., PostgresqlBackend]:
    def open_backend(url: str, port: PostgresqlPort, runtime: Runtime) -> PostgresqlBackend:
        return PostgresqlBackend(url, port_type(port, runtime), runtime)

    return open_backend


# ── acquire and release ──────────────────────────────────────────────────────────────────────────────────────────────

_POLL = Statement("holdfast_is_free", "SELECT, without a lock on the row")


class _ChecksFirst(_Port):
    async def execute(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> list[Row]:
        if statement is queue._FAST_ACQUIRE and not await self._port.execute(_POLL, values[:1], deadline=deadline):
            return []
        return await self._port.execute(statement, values, deadline=deadline)


class CheckThenInsert(Tables):
    def is_free_rows(self, name: str) -> list[Row]:
        lock = self.locks.get(name)
        return [("t",)] if lock is None or super().is_free(lock) else []

    def is_free(self, lock: Lock) -> bool:
        return True


class AcquiresPastTheQueue(Tables):
    def is_free(self, lock: Lock) -> bool:
        return lock.nonce is None


class GrantClearsWaiters(Tables):
    def has_tickets(self, name: str, head: int) -> bool:
        return False


class ReleasesBlindly(Tables):
    def fast_release_rows(self, name: str, nonce: str) -> list[Row]:
        lock = self.locks.get(name)
        return [] if lock is None or lock.nonce is None else super().fast_release_rows(name, lock.nonce)


class ReleasesNotRemembered(Tables):
    def remember_departed(self, name: str, nonce: str, now: int) -> None:
        pass


# ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class _ClientTime(_Port):
    async def execute(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> list[Row]:
        return await self._port.execute(statement, (*values, us(self._runtime.wall())), deadline=deadline)


class ClientClock(Tables):
    def run(self, statement: Statement, values: Sequence[Value]) -> list[Row]:
        *others, now = values
        clock, self.clock = self.clock, lambda: int(now or 0)
        try:
            return super().run(statement, others)
        finally:
            self.clock = clock


class NothingExpires(Tables):
    def has_expired(self, expires: int | None, now: int) -> bool:
        return False


class RenewsBlindly(Tables):
    def renew(self, name: str, nonce: str, ttl: int) -> bool:
        lock = self.locks.get(name)
        holder = nonce if lock is None or lock.nonce is None else lock.nonce
        return super().renew(name, holder, ttl)


class RenewalRecreates(Tables):
    def renew(self, name: str, nonce: str, ttl: int) -> bool:
        lock = self.locks.get(name)
        if not super().renew(name, nonce, ttl) and lock is not None and lock.nonce is None:
            lock.nonce, lock.expires = nonce, self.clock() + ttl
        return lock is not None and lock.nonce == nonce


class WokenKeepsItsLease(Tables):
    def wake_waiter(self, ticket: Ticket, now: int) -> None:
        self.notify(ticket.channel, ticket.nonce)


class IgnoresClockSetBack(Tables):
    """An earlier bug: a lease ends when the clock shows its expiry, even if the clock was set back."""

    def is_set_back(self, renewed: int, now: int) -> bool:
        return False


# ── dead clients ─────────────────────────────────────────────────────────────────────────────────────────────────────


class DeadWaitersInTurn(Tables):
    """An earlier bug: each dead waiter is woken, and has to expire before the next one's turn."""

    def lapse(self, ticket: Ticket, now: int, head: int, caller: str | None) -> str | None:
        return super().lapse(ticket, now, head, ticket.channel)


class StoppedWaitersInTurn(Tables):
    """Of a client that does not respond, one waiter is skipped, and the next one is woken."""

    def lapse(self, ticket: Ticket, now: int, head: int, caller: str | None) -> str | None:
        return super().lapse(ticket, now, head, caller) and "ticket"

    def same_client(self, ticket: Ticket, head: int) -> list[Ticket]:
        return [entry for entry in super().same_client(ticket, head) if entry is ticket]


# ── the reaper ───────────────────────────────────────────────────────────────────────────────────────────────────────


class ReapsByNumber(Tables):
    """As if no lock could be held for three seconds."""

    def reap(self, now: int) -> int:
        old = [lock.name for lock in self.locks.values() if lock.drawn < now - us(3.0)]
        for name in old:
            del self.locks[name]
        return len(old)


class NewRowsAreFree(Tables):
    """An earlier bug: a lock whose row an operator has deleted is free, even if it has tickets."""

    def may_have_tickets(self) -> bool:
        return False


class ReapsTooSoon(PostgresqlServer):
    """The remembered releases are removed with the row."""

    def prepare(self, faults: Faults, ttl: float) -> None:
        super().prepare(faults, ttl)
        self.tables.fence_idle = us(0.5)


# ── fences ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class FenceByClock(Tables):
    def draw(self, lock: Lock | None, now: int) -> int:
        return now


class SequenceFence(Tables):
    sequence = 0

    def hold(self, lock: Lock, nonce: str, since: int, ttl: int, agent_and_info: tuple[str, str]) -> None:
        super().hold(lock, nonce, since, ttl, agent_and_info)
        self.sequence += 1
        lock.fence = self.sequence


class SequenceServer(PostgresqlServer):
    """A counter that loses its last values in a crash, as a sequence does whose values were not committed."""

    kinds = ("lock",)
    tables_type = SequenceFence

    def restart(self) -> None:
        super().restart()
        if isinstance(self.tables, SequenceFence):
            self.tables.sequence = max(0, self.tables.sequence - 4)


# ── owners ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class GrantsAnyOwner(Tables):
    def owner_fence(self, lock: Lock, owner: str, now: int) -> int | None:
        known = {ticket.owner for ticket in self.tickets if ticket.name == lock.name and ticket.owner}
        fences = (super(GrantsAnyOwner, self).owner_fence(lock, known_owner, now) for known_owner in sorted(known))
        return next((fence for fence in fences if fence is not None), None)


class RepeatDrawsNewFence(Tables):
    """An earlier bug: a late request draws a new fence for a granted ticket that has reported the old one."""

    def try_acquire_owner(self, *values: Any) -> Row:
        name, nonce = values[:2]
        mine = self._ticket(name, nonce, 0)
        if mine is not None and mine.fence is not None:
            mine.owner = None
        return super().try_acquire_owner(*values)


class OwnerQueuedBehind(Tables):
    def first_number(self, lock: Lock, drawn: int) -> int:
        return drawn


# ── registers ────────────────────────────────────────────────────────────────────────────────────────────────────────


class _ReadsRegisterFirst(_Port):
    async def execute(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> list[Row]:
        if statement is queue._ADVANCE_REGISTER:
            name, number, *_ = values
            for _, register in await self._port.execute(
                queue._READ_REGISTERS, (queue._array([str(name)]),), deadline=deadline
            ):
                if int(register or 0) >= int(number or 0):
                    return []
        return await self._port.execute(statement, values, deadline=deadline)


class RegisterOverwritten(Tables):
    def is_lower(self, register: Register, number: int, nonce: str) -> bool:
        return True


class RegisterWithoutNonce(Tables):
    def is_lower(self, register: Register, number: int, nonce: str) -> bool:
        return register.number < number


# ── records ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class RecordOverwritten(Tables):
    def is_expected(self, record: StoredRecord | None, expected: str) -> bool:
        return True


# ── advisory locks ───────────────────────────────────────────────────────────────────────────────────────────────────


class AdvisoryLockBeforeLease(Tables):
    """An earlier bug: a ticket with an unknown lease waits for a ticket that waits for that lease."""

    def pass_(
        self, name: str, nonce: str, ttl: int, agent_and_info: tuple[str, str], *, has_advisory_lock: bool
    ) -> Row:
        if has_advisory_lock or name not in self.locks:
            return super().pass_(name, nonce, ttl, agent_and_info, has_advisory_lock=has_advisory_lock)
        return super().pass_(name, "nobody", ttl, agent_and_info, has_advisory_lock=False)


class AdvisoryLockIsTheLock(Tables):
    """The ticket with the advisory lock is granted, even if there is a lease."""

    def pass_(
        self, name: str, nonce: str, ttl: int, agent_and_info: tuple[str, str], *, has_advisory_lock: bool
    ) -> Row:
        if has_advisory_lock and name in self.locks:
            self.locks[name].nonce = None
        return super().pass_(name, nonce, ttl, agent_and_info, has_advisory_lock=has_advisory_lock)


class WaitsOnDeadConnection(AdvisoryBackend):
    """An earlier bug: a waiter trusts that its connection is alive."""

    def __init__(self, url: str, port: PostgresqlPort, runtime: Runtime, *, schema: str) -> None:
        super().__init__(url, port, runtime, schema=schema)
        self._checking: set[WaiterSession] = set()

    async def _check_holder(self, claim: Claim, session: WaiterSession, state: Any, deadline: float) -> None:
        self._checking.add(session)
        try:
            await super()._check_holder(claim, session, state, deadline)
        finally:
            self._checking.discard(session)

    async def _close_session(self, session: WaiterSession, name: str, deadline: float) -> None:
        if session not in self._checking:
            await super()._close_session(session, name, deadline)


class HolderNotTerminated(AdvisoryServer):
    """A session can keep the advisory lock without a lease."""

    def run(self, port: SimPort, statement: Statement, values: Sequence[Value]) -> list[Row]:
        return [] if statement is advisory._TERMINATE_HOLDER else super().run(port, statement, values)


# ── sessions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class LeaseEndsWithConnection(PostgresqlServer):
    """The lock is a row lock in an open transaction: it ends with the connection, at once."""

    def __init__(self, world: World, recorder: Recorder) -> None:
        super().__init__(world, recorder)
        self._sessions: dict[str, Process] = {}  # by nonce

    def run(self, port: SimPort, statement: Statement, values: Sequence[Value]) -> list[Row]:
        if statement in (queue._FAST_ACQUIRE, queue._TRY_ACQUIRE):
            self._sessions[str(values[1])] = port.link.process
        if statement is queue._TRY_ACQUIRE_ALL:
            self._sessions |= dict.fromkeys(items(str(values[1])), port.link.process)
        return super().run(port, statement, values)

    def drop(self, process: Process) -> bool:
        ended = [
            (lock.name, lock.nonce)
            for lock in self.tables.locks.values()
            if lock.nonce is not None and self._sessions[lock.nonce] is process
        ]
        for name, nonce in ended:
            self.execute(lambda name=name, nonce=nonce: self.tables.fast_release_rows(name, nonce))  # type: ignore[misc]
        return super().drop(process) or bool(ended)


POSTGRESQL = [
    Mutant(
        name="check-then-insert",
        mistake="one step checks that the lock is free, and another acquires it",
        backend="postgresql",
        server=_server(CheckThenInsert, backend=_with_port(_ChecksFirst)),
    ),
    Mutant(
        name="acquires-past-the-queue",
        mistake="a lock without an exclusive holder is acquired although other tickets share it or wait for it",
        backend="postgresql",
        server=_server(AcquiresPastTheQueue),
    ),
    Mutant(
        name="grant-clears-waiters",
        mistake="a grant records that there are no waiters, without a check",
        backend="postgresql",
        server=_server(GrantClearsWaiters),
    ),
    Mutant(
        name="releases-blindly",
        mistake="a release empties the row of the lock, even if another ticket holds it",
        backend="postgresql",
        server=_server(ReleasesBlindly),
    ),
    Mutant(
        name="releases-not-remembered",
        mistake="no memory of releases: a try_acquire that arrives after its release acquires the lock for no client",
        backend="postgresql",
        server=_server(ReleasesNotRemembered),
        kinds=frozenset({"slow", "cancel"}),
    ),
    Mutant(
        name="client-clock-as-now",
        mistake="the client's clock is sent to the server and used there",
        backend="postgresql",
        server=_server(ClientClock, backend=_with_port(_ClientTime)),
    ),
    Mutant(
        name="nothing-expires",
        mistake="rows of dead clients stay forever",
        backend="postgresql",
        server=_server(NothingExpires),
    ),
    Mutant(
        name="row-renewed-blindly",
        mistake="a renewal prolongs the lease of another ticket",
        backend="postgresql",
        server=_server(RenewsBlindly),
        kinds=frozenset({"break_lock"}),
    ),
    Mutant(
        name="row-renewal-recreates",
        mistake="a renewal restores a lease that is gone, if the lock is free",
        backend="postgresql",
        server=_server(RenewalRecreates),
    ),
    Mutant(
        name="woken-keeps-its-lease",
        mistake="a woken waiter that does not poll keeps its place as long as any waiter",
        backend="postgresql",
        server=_server(WokenKeepsItsLease),
        by_seeds=False,  # in a healed world no process is stopped
    ),
    Mutant(
        name="ignores-a-clock-set-back",
        mistake="after the clock was set back, a lease lasts until the clock shows its expiry again",
        backend="postgresql",
        server=_server(IgnoresClockSetBack),
        kinds=frozenset({"step_clock", "crash"}),
    ),
    Mutant(
        name="dead-waiters-in-turn",
        mistake="waiters of a dead client are woken one after the other, as if they could poll",
        backend="postgresql",
        server=_server(DeadWaitersInTurn),
        by_seeds=False,  # no process has several waiters there
    ),
    Mutant(
        name="stopped-waiters-in-turn",
        mistake="of a client that does not respond, one waiter is skipped, and the next one is woken",
        backend="postgresql",
        server=_server(StoppedWaitersInTurn),
        by_seeds=False,  # likewise
    ),
    Mutant(
        name="new-rows-are-free",
        mistake="a lock whose row an operator has deleted is acquired although other tickets share it",
        backend="postgresql",
        server=_server(NewRowsAreFree),
        kinds=frozenset({"lose_reply"}),
    ),
    Mutant(
        name="reaps-by-number",
        mistake="the reaper checks only when a lock was last acquired, and removes live leases",
        backend="postgresql",
        server=_server(ReapsByNumber),
    ),
    Mutant(
        name="reaps-too-soon",
        mistake="a lock is removed with its remembered releases, while a try_acquire of theirs may still arrive",
        backend="postgresql",
        server=ReapsTooSoon,
        kinds=frozenset({"slow", "cancel"}),
    ),
    Mutant(
        name="fence-by-clock-only",
        mistake="the fence is the server's clock, without the last fence as a floor",
        backend="postgresql",
        server=_server(FenceByClock),
        kinds=frozenset({"step_clock"}),
    ),
    Mutant(
        name="fence-by-sequence",
        mistake="the fence is a counter that loses values in a crash",
        backend="postgresql",
        server=SequenceServer,
        kinds=frozenset({"restart"}),
    ),
    Mutant(
        name="lease-ends-with-connection",
        mistake="a lease ends with its connection, while its holder works on",
        backend="postgresql",
        server=LeaseEndsWithConnection,
        kinds=frozenset({"drop"}),
    ),
    Mutant(
        name="postgresql-grants-any-owner",
        mistake="a ticket with an owner is granted together with a holder of any owner",
        backend="postgresql",
        server=_server(GrantsAnyOwner),
        by_seeds=False,
    ),
    Mutant(
        name="postgresql-repeat-draws-new-fence",
        mistake="a repeated request of a granted ticket gets a new fence; others of its owner have the old one",
        backend="postgresql",
        server=_server(RepeatDrawsNewFence),
        by_seeds=False,
    ),
    Mutant(
        name="owner-queued-behind",
        mistake="a ticket granted because of its owner is queued behind the waiters, so it does not block them",
        backend="postgresql",
        server=_server(OwnerQueuedBehind),
        by_seeds=False,
    ),
    Mutant(
        name="register-in-two-steps",
        mistake="one step reads a register, and another writes it",
        backend="postgresql",
        server=_server(RegisterOverwritten, backend=_with_port(_ReadsRegisterFirst)),
        by_seeds=False,
    ),
    Mutant(
        name="register-without-nonce",
        mistake="no nonce is stored: a repeated request is told that it did not advance the register",
        backend="postgresql",
        server=_server(RegisterWithoutNonce),
        by_seeds=False,
    ),
    Mutant(
        name="record-overwritten",
        mistake="a record is replaced without a comparison of its nonce",
        backend="postgresql",
        server=_server(RecordOverwritten),
        workload="once",
        kinds=frozenset({"pause"}),
    ),
    Mutant(
        name="advisory-lock-before-lease",
        mistake="a ticket with an unknown lease and no advisory lock waits for a ticket that waits for it",
        backend="postgresql-advisory",
        server=_advisory(AdvisoryLockBeforeLease),
        kinds=frozenset({"lose_reply"}),
    ),
    Mutant(
        name="advisory-lock-is-the-lock",
        mistake="the advisory lock is the lock: it ends with its session, while its holder works on",
        backend="postgresql-advisory",
        server=_advisory(AdvisoryLockIsTheLock),
        kinds=frozenset({"drop"}),
    ),
    Mutant(
        name="waits-on-dead-connection",
        mistake="a waiter waits forever if its connection has ended and the network was cut at that moment",
        backend="postgresql-advisory",
        server=type("Mutated", (AdvisoryServer,), {"backend": WaitsOnDeadConnection}),
        kinds=frozenset({"cut"}),
    ),
    Mutant(
        name="holder-not-terminated",
        mistake="a session with the advisory lock and without a lease, as of a stopped process, blocks all others",
        backend="postgresql-advisory",
        server=HolderNotTerminated,
        by_seeds=False,  # in a healed world no process is stopped
    ),
]
