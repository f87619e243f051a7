"""The postgresql protocol with one bug each: what people get wrong with rows as locks, and with sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.backends.postgresql.port import Statement
from holdfast.backends.postgresql.protocol import advisory, queue
from holdfast.backends.postgresql.protocol.advisory import AdvisoryBackend
from holdfast.backends.postgresql.protocol.queue import PostgresqlBackend
from holdfast.backends.sql_protocol import us
from holdfast.sim.mutants.base import Mutant
from holdfast.sim.servers.postgresql.server import PostgresqlServer
from holdfast.sim.servers.postgresql.tables import Lock, Register, Tables, Ticket, items
from holdfast.sim.servers.postgresql.waiter_sessions import AdvisoryServer

if TYPE_CHECKING:
    from holdfast.backends.postgresql.port import PostgresqlPort, Row, Value, WaiterSession
    from holdfast.core.ports import Runtime
    from holdfast.sim.faults import Faults
    from holdfast.sim.process import Process
    from holdfast.sim.recorder import Recorder
    from holdfast.sim.servers.postgresql.port import SimPort
    from holdfast.sim.world import World


def _gated(tables: type[Tables]) -> type[AdvisoryServer]:
    return type("Mutated", (AdvisoryServer,), {"tables_type": tables})


def _server(tables: type[Tables], **more: Any) -> type[PostgresqlServer]:
    return type("Mutated", (PostgresqlServer,), {"tables_type": tables, **more})


class _Port:
    """A port that asks otherwise."""

    def __init__(self, port: PostgresqlPort, runtime: Runtime) -> None:
        self._port = port
        self._runtime = runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)


def _asking(port_type: type[_Port]) -> Callable[..., PostgresqlBackend]:
    def open_backend(url: str, port: PostgresqlPort, runtime: Runtime) -> PostgresqlBackend:
        return PostgresqlBackend(url, port_type(port, runtime), runtime)

    return open_backend


# ── taking and giving back ───────────────────────────────────────────────────────────────────────────────────────────

_POLL = Statement("holdfast_is_free", "SELECT, without a lock on the row")


class _LooksFirst(_Port):
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


class TakesPastTheLine(Tables):
    def is_free(self, lock: Lock) -> bool:
        return lock.nonce is None


class LineForgotten(Tables):
    def has_tickets(self, name: str, head: int) -> bool:
        return False


class FreesBlindly(Tables):
    def fast_release_rows(self, name: str, nonce: str) -> list[Row]:
        lock = self.locks.get(name)
        return [] if lock is None or lock.nonce is None else super().fast_release_rows(name, lock.nonce)


class NobodyIsRemembered(Tables):
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


class NothingRunsOut(Tables):
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


class IgnoresTheClockBack(Tables):
    """As it once was: a lease ends when the clock shows its time, however often the clock was set back."""

    def is_set_back(self, renewed: int, now: int) -> bool:
        return False


# ── clients that have died ───────────────────────────────────────────────────────────────────────────────────────────


class DeadWaitersInTurn(Tables):
    """As it once was: each is woken, and its time has to be over, before the next one's turn."""

    def lapse(self, ticket: Ticket, now: int, head: int, caller: str | None) -> str | None:
        return super().lapse(ticket, now, head, ticket.channel)


class StoppedWaitersInTurn(Tables):
    """Of a client that does not answer, one waiter is passed over, and the next one is woken."""

    def lapse(self, ticket: Ticket, now: int, head: int, caller: str | None) -> str | None:
        return super().lapse(ticket, now, head, caller) and "ticket"

    def same_client(self, ticket: Ticket, head: int) -> list[Ticket]:
        return [one for one in super().same_client(ticket, head) if one is ticket]


# ── what is removed ──────────────────────────────────────────────────────────────────────────────────────────────────


class ReapsByNumber(Tables):
    """As if nobody could hold a lock for three seconds."""

    def reap(self, now: int) -> int:
        old = [lock.name for lock in self.locks.values() if lock.drawn < now - us(3.0)]
        for name in old:
            del self.locks[name]
        return len(old)


class NewRowsAreFree(Tables):
    """As it once was: a lock whose row somebody has deleted is nobody's, whatever tickets it has."""

    def may_have_tickets(self) -> bool:
        return False


class ReapsTooSoon(PostgresqlServer):
    """What is remembered of who left goes with the row."""

    def prepare(self, faults: Faults, ttl: float) -> None:
        super().prepare(faults, ttl)
        self.tables.fence_idle = us(0.5)


# ── fences ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class FenceByClock(Tables):
    def draw(self, lock: Lock | None, now: int) -> int:
        return now


class SequenceFence(Tables):
    sequence = 0

    def hold(self, lock: Lock, nonce: str, since: int, ttl: int, who: tuple[str, str]) -> None:
        super().hold(lock, nonce, since, ttl, who)
        self.sequence += 1
        lock.fence = self.sequence


class SequenceServer(PostgresqlServer):
    """A counter of which a crash forgets the last few values, as of a sequence that nobody has waited for."""

    kinds = ("lock",)
    tables_type = SequenceFence

    def restart(self) -> None:
        super().restart()
        if isinstance(self.tables, SequenceFence):
            self.tables.sequence = max(0, self.tables.sequence - 4)


# ── owners ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class AnybodyIsKin(Tables):
    def owner_fence(self, lock: Lock, owner: str, now: int) -> int | None:
        known = {ticket.owner for ticket in self.tickets if ticket.name == lock.name and ticket.owner}
        fences = (super(AnybodyIsKin, self).owner_fence(lock, one, now) for one in sorted(known))
        return next((fence for fence in fences if fence is not None), None)


class KinDrawsAgain(Tables):
    """As it once was: a request that is late draws a new fence for a ticket that is in, and has told its own."""

    def try_acquire_owner(self, *values: Any) -> Row:
        name, nonce = values[:2]
        mine = self._ticket(name, nonce, 0)
        if mine is not None and mine.fence is not None:
            mine.owner = None
        return super().try_acquire_owner(*values)


class KinStandsBehind(Tables):
    def first_number(self, lock: Lock, drawn: int) -> int:
        return drawn


# ── marks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class _ReadsItsMark(_Port):
    async def execute(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> list[Row]:
        if statement is queue._ADVANCE_REGISTER:
            name, number, *_ = values
            for _, register in await self._port.execute(
                queue._READ_REGISTERS, (queue._array([str(name)]),), deadline=deadline
            ):
                if int(register or 0) >= int(number or 0):
                    return []
        return await self._port.execute(statement, values, deadline=deadline)


class MarkWritten(Tables):
    def is_lower(self, register: Register, number: int, nonce: str) -> bool:
        return True


class MarkOfNobody(Tables):
    def is_lower(self, register: Register, number: int, nonce: str) -> bool:
        return register.number < number


# ── gates ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class GateBeforeLease(Tables):
    """As it once was: who has a lease without knowing waits at the gate for who waits for that lease."""

    def pass_(self, name: str, nonce: str, ttl: int, who: tuple[str, str], *, has_advisory_lock: bool) -> Row:
        if has_advisory_lock or name not in self.locks:
            return super().pass_(name, nonce, ttl, who, has_advisory_lock=has_advisory_lock)
        return super().pass_(name, "nobody", ttl, who, has_advisory_lock=False)


class GateIsTheLock(Tables):
    """Who comes through the gate is in, whatever lease there is."""

    def pass_(self, name: str, nonce: str, ttl: int, who: tuple[str, str], *, has_advisory_lock: bool) -> Row:
        if has_advisory_lock and name in self.locks:
            self.locks[name].nonce = None
        return super().pass_(name, nonce, ttl, who, has_advisory_lock=has_advisory_lock)


class TrustsItsConnection(AdvisoryBackend):
    """As it once was: who waits at the gate hears of it on that connection, or never."""

    async def _close_session(self, session: WaiterSession, name: str, deadline: float) -> None:
        if session not in self._sessions.values():
            await super()._close_session(session, name, deadline)


class NobodyIsPutOut(AdvisoryServer):
    """A session keeps the gate for as long as it likes."""

    def run(self, port: SimPort, statement: Statement, values: Sequence[Value]) -> list[Row]:
        return [] if statement is advisory._TERMINATE_HOLDER else super().run(port, statement, values)


# ── sessions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class LeaseOfASession(PostgresqlServer):
    """The lock is a row that is locked in an open transaction: it ends with the connection, and without a delay."""

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
        mistake="whether the lock is free is looked at in one step, and it is taken in another",
        backend="postgresql",
        server=_server(CheckThenInsert, backend=_asking(_LooksFirst)),
    ),
    Mutant(
        name="takes-past-the-line",
        mistake="a lock without an exclusive holder is taken although others share it, or wait for it",
        backend="postgresql",
        server=_server(TakesPastTheLine),
    ),
    Mutant(
        name="line-forgotten",
        mistake="who gets in says that nobody waits, without looking",
        backend="postgresql",
        server=_server(LineForgotten),
    ),
    Mutant(
        name="frees-blindly",
        mistake="a release empties the lock's row, whoever's it is",
        backend="postgresql",
        server=_server(FreesBlindly),
    ),
    Mutant(
        name="nobody-is-remembered",
        mistake="nobody remembers who left: an enter that comes after its own leave takes the lock for nobody",
        backend="postgresql",
        server=_server(NobodyIsRemembered),
        kinds=frozenset({"slow", "cancel"}),
    ),
    Mutant(
        name="client-clock-as-now",
        mistake="the client's clock is sent along, and the tables go by it",
        backend="postgresql",
        server=_server(ClientClock, backend=_asking(_ClientTime)),
    ),
    Mutant(
        name="nothing-runs-out",
        mistake="rows of the dead stay for ever",
        backend="postgresql",
        server=_server(NothingRunsOut),
    ),
    Mutant(
        name="row-renewed-blindly",
        mistake="a renewal prolongs the lock's row although another ticket is in it",
        backend="postgresql",
        server=_server(RenewsBlindly),
        kinds=frozenset({"break_lock"}),
    ),
    Mutant(
        name="row-renewal-recreates",
        mistake="a renewal puts a lease back that is gone, if nobody else is in",
        backend="postgresql",
        server=_server(RenewalRecreates),
    ),
    Mutant(
        name="woken-keeps-its-lease",
        mistake="who is woken and does not come keeps its place for as long as any waiter",
        backend="postgresql",
        server=_server(WokenKeepsItsLease),
        by_seeds=False,  # in a healed world no process is stopped
    ),
    Mutant(
        name="ignores-the-clock-back",
        mistake="a lease that met a clock that was set back lasts until the clock shows its time again",
        backend="postgresql",
        server=_server(IgnoresTheClockBack),
        kinds=frozenset({"step_clock", "crash"}),
    ),
    Mutant(
        name="dead-waiters-in-turn",
        mistake="waiters whose client has died are woken one after the other, as if they could come",
        backend="postgresql",
        server=_server(DeadWaitersInTurn),
        by_seeds=False,  # no process has several waiters there
    ),
    Mutant(
        name="stopped-waiters-in-turn",
        mistake="of a client that does not answer one waiter is passed over, and the next one is woken",
        backend="postgresql",
        server=_server(StoppedWaitersInTurn),
        by_seeds=False,  # likewise
    ),
    Mutant(
        name="new-rows-are-free",
        mistake="a lock whose row was deleted by hand is taken although others share it",
        backend="postgresql",
        server=_server(NewRowsAreFree),
        kinds=frozenset({"lose_reply"}),
    ),
    Mutant(
        name="reaps-by-number",
        mistake="the reaper goes by when a lock was last taken, and removes leases that are alive",
        backend="postgresql",
        server=_server(ReapsByNumber),
    ),
    Mutant(
        name="reaps-too-soon",
        mistake="a lock is removed while it remembers who has just left: an enter of theirs may still come",
        backend="postgresql",
        server=ReapsTooSoon,
        kinds=frozenset({"slow", "cancel"}),
    ),
    Mutant(
        name="fence-by-clock-only",
        mistake="the fence is the server's clock, and the last one does not count",
        backend="postgresql",
        server=_server(FenceByClock),
        kinds=frozenset({"step_clock"}),
    ),
    Mutant(
        name="fence-by-sequence",
        mistake="the fence is a counter that falls back in a crash",
        backend="postgresql",
        server=SequenceServer,
        kinds=frozenset({"restart"}),
    ),
    Mutant(
        name="lease-of-a-session",
        mistake="a lease ends with its connection, while its holder believes in it",
        backend="postgresql",
        server=LeaseOfASession,
        kinds=frozenset({"drop"}),
    ),
    Mutant(
        name="anybody-is-kin",
        mistake="a ticket that names an owner is let in with whichever owner is in",
        backend="postgresql",
        server=_server(AnybodyIsKin),
        by_seeds=False,
    ),
    Mutant(
        name="kin-draws-again",
        mistake="a ticket that is in and asks again gets a new fence, although others of its owner have the old one",
        backend="postgresql",
        server=_server(KinDrawsAgain),
        by_seeds=False,
    ),
    Mutant(
        name="kin-stands-behind",
        mistake="a ticket that its owner let in past those who wait has its place behind them: they do not see it",
        backend="postgresql",
        server=_server(KinStandsBehind),
        by_seeds=False,
    ),
    Mutant(
        name="mark-in-two-steps",
        mistake="a mark is read in one step, and written in another",
        backend="postgresql",
        server=_server(MarkWritten, backend=_asking(_ReadsItsMark)),
        by_seeds=False,
    ),
    Mutant(
        name="mark-of-nobody",
        mistake="nobody remembers who raised a mark: who did, and got no answer, is told that it did not",
        backend="postgresql",
        server=_server(MarkOfNobody),
        by_seeds=False,
    ),
    Mutant(
        name="gate-before-lease",
        mistake="who has a lease without knowing, and lost its gate with the answer, waits for who waits for it",
        backend="postgresql-advisory",
        server=_gated(GateBeforeLease),
        kinds=frozenset({"lose_reply"}),
    ),
    Mutant(
        name="gate-is-the-lock",
        mistake="an advisory lock is taken for the lock: it ends with its session, while its holder works on",
        backend="postgresql-advisory",
        server=_gated(GateIsTheLock),
        kinds=frozenset({"drop"}),
    ),
    Mutant(
        name="trusts-its-connection",
        mistake="who waits at the gate waits for ever if its connection has ended and no word of that came through",
        backend="postgresql-advisory",
        server=type("Mutated", (AdvisoryServer,), {"backend": TrustsItsConnection}),
        kinds=frozenset({"cut"}),
    ),
    Mutant(
        name="nobody-is-put-out",
        mistake="a session that keeps the gate without a lease, as that of a stopped process, keeps all others out",
        backend="postgresql-advisory",
        server=NobodyIsPutOut,
        by_seeds=False,  # in a healed world no process is stopped
    ),
]
