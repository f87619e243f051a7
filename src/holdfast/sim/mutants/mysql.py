"""The mysql protocols with one bug each: what people get wrong with rows as locks, and with versions of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.backends.mysql.port import Answer, Statement
from holdfast.backends.mysql.protocol import statements
from holdfast.backends.mysql.protocol.row import RowBackend
from holdfast.backends.mysql.protocol.unique import UniqueBackend
from holdfast.backends.mysql.protocol.version import VersionBackend
from holdfast.backends.sql_protocol import us
from holdfast.sim.mutants.base import Mutant
from holdfast.sim.servers.mysql.registers import Register
from holdfast.sim.servers.mysql.server import MysqlServer, UniqueServer, VersionServer
from holdfast.sim.servers.mysql.tables import Lock, Tables
from holdfast.sim.servers.mysql.tables import Ticket as Row
from holdfast.sim.servers.mysql.waiter_sessions import RowServer, SimConnection

if TYPE_CHECKING:
    from holdfast.backends.mysql.port import MysqlPort, Value
    from holdfast.backends.mysql.protocol.plain import State
    from holdfast.core.ports import Runtime
    from holdfast.core.tickets import Ticket


def _server(base: type[MysqlServer], tables: type[Tables], **more: Any) -> type[MysqlServer]:
    return type("Mutated", (base,), {"tables_type": tables, **more})


class _Port:
    """A port that asks otherwise."""

    def __init__(self, port: MysqlPort, runtime: Runtime) -> None:
        self._port = port
        self._runtime = runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)


def _asking(backend: Callable[..., Any], port_type: type[_Port]) -> Callable[..., Any]:
    def open_backend(url: str, port: MysqlPort, runtime: Runtime) -> Any:
        return backend(url, port_type(port, runtime), runtime)

    return open_backend


# ── of both methods ──────────────────────────────────────────────────────────────────────────────────────────────────


class FreesBlindly(Tables):
    def is_holder(self, lock: Lock, nonce: str) -> bool:
        return lock.nonce is not None


class FenceByClock(Tables):
    def draw(self, lock: Lock, now: int) -> int:
        return now


class _ClientTime(_Port):
    async def execute(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> Answer:
        return await self._port.execute(statement, (*values, us(self._runtime.wall())), deadline=deadline)


class ClientClock(Tables):
    def run(self, statement: Statement, values: Sequence[Value]) -> Answer:
        *others, now = values
        clock, self.clock = self.clock, lambda: now if isinstance(now, int) else 0
        try:
            return super().run(statement, others)
        finally:
            self.clock = clock


# ── method=version ───────────────────────────────────────────────────────────────────────────────────────────────────


class CheckThenSet(Tables):
    def cas_acquire_answer(  # noqa: PLR0917  (as the real one)
        self, key: bytes, nonce: str, version: int, ttl: int, agent: str, info: str
    ) -> Answer:
        lock = self.locks.get(key)
        return Answer() if lock is None else self._hold(lock, nonce, self.clock(), ttl, "version", agent, info)


class AnyVersion(Tables):
    def has_version(self, lock: Lock, version: int) -> bool:
        return True


class NothingIsOutdated(Tables):
    def bump_version_answer(self, key: bytes, nonce: str) -> Answer:
        return Answer()


# ── method=unique ────────────────────────────────────────────────────────────────────────────────────────────────────


class _LooksFirst(_Port):
    async def execute(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> Answer:
        if statement is statements.FAST_ACQUIRE:
            found = await self._port.execute(statements.STATE, values[:1], deadline=deadline)
            for _, _, nonce, remaining, _, has_tickets, _ in found.rows:
                if has_tickets == "1" or (nonce is not None and int(remaining or 0) > 0):
                    return Answer()
        return await self._port.execute(statement, values, deadline=deadline)


class DeletedWithItsTickets(Tables):
    """A lock whose row was deleted by hand counts as free, although it has readers."""

    def hides_tickets(self, key: bytes) -> bool:
        return False


class TakesBlindly(DeletedWithItsTickets):
    def is_free(self, lock: Lock, now: int) -> bool:
        return True


class TakesPastTheLine(DeletedWithItsTickets):
    def is_free(self, lock: Lock, now: int) -> bool:
        return lock.nonce is None or lock.expires <= now


class NobodyIsRemembered(Tables):
    def remember_departed(self, key: bytes, name: str, nonce: str, now: int) -> None:
        pass


class NothingRunsOut(Tables):
    def has_expired(self, expires: int, now: int) -> bool:
        return False


class ReapsByNumber(Tables):
    """As if nobody could hold a lock for three seconds."""

    def is_idle(self, lock: Lock, now: int) -> bool:
        return lock.drawn < now - us(3.0)


class WokenKeepsItsLease(Tables):
    def woken(self, expires: int, now: int) -> int:
        return expires


class WokenAlone(Tables):
    """The lease of the next waiter is shortened, but not those of the other waiters of its client."""

    def is_woken(self, ticket: Row, next_ones: Sequence[Row]) -> bool:
        return ticket in next_ones


class ClockNeverGoesBack(Tables):
    """A lease ends when the clock shows its end, also if the clock was set back since it was renewed."""

    def rebase(self, lock: Lock, tickets: Sequence[Row], now: int) -> None:
        pass

    def rebase_answer(self, key: bytes, renewed: int) -> Answer:
        return Answer()


class AnyOwnerIsKin(Tables):
    """As if it were enough to have some owner."""

    def same_owner(self, key: bytes, owner: str) -> list[Row]:
        return [ticket for ticket in self._queue(key) if ticket.fence is not None and ticket.owner]


class KinWithAFenceOfItsOwn(Tables):
    def fence_of(self, same_owner: Sequence[Row], drawn: int) -> int:
        return drawn


class KinDrawsAgain(Tables):
    """As it once was: an enter that comes late draws a new fence for who is in, and works with the old one."""

    _asks = ""

    def try_acquire_owned_answer(self, key: bytes, name: str, nonce: str, *values: Any) -> Answer:
        self._asks = nonce
        try:
            return super().try_acquire_owned_answer(key, name, nonce, *values)
        finally:
            self._asks = ""

    def same_owner(self, key: bytes, owner: str) -> list[Row]:
        return [ticket for ticket in super().same_owner(key, owner) if ticket.nonce != self._asks]


# ── marks, of all methods ────────────────────────────────────────────────────────────────────────────────────────────


class MarksBlindly(Tables):
    def is_lower(self, register: Register, number: int) -> bool:
        return True


class _MarksInTwoSteps(_Port):
    async def execute(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> Answer:
        if statement is statements.ADVANCE_REGISTER:
            key, _, number, *_ = values
            found = await self._port.execute(statements.READ_REGISTERS, ((key,),), deadline=deadline)
            if any(int(known or 0) >= int(str(number)) for _, known in found.rows):
                return Answer()
        return await self._port.execute(statement, values, deadline=deadline)


# ── method=row ───────────────────────────────────────────────────────────────────────────────────────────────────────


class WaitsForItself(RowBackend):
    """As it once was: who has a lease without knowing waits at the gate for who waits for that lease."""

    async def _release_own_lease(self, ticket: Ticket, state: State, deadline: float) -> bool:
        return False


class NobodyIsExpelled(RowServer):
    """A session keeps the gate for as long as it likes."""

    def run(self, statement: Statement, values: Sequence[Value]) -> Answer:
        return Answer() if statement.name == "kill" else super().run(statement, values)


class ExpelledAlone(RowServer):
    """Of a client that does not answer, only the session that has the gate is ended."""

    def run(self, statement: Statement, values: Sequence[Value]) -> Answer:
        return Answer() if statement.name == "same_client" else super().run(statement, values)


class KillsByNumber(RowServer):
    """The number of the connection is read in one request and killed by another, which may be slow."""

    def run(self, statement: Statement, values: Sequence[Value]) -> Answer:
        if statement.name != "kill":
            return super().run(statement, values)
        connection = self.marks.get(str(values[0]).encode())
        if connection is not None:
            self.world.at(self.world.now + 3.0, self.when_running, self._kill, connection)
        return Answer()

    def _kill(self, connection: SimConnection) -> None:
        if not connection.is_over:
            self._end([connection])


MYSQL = [
    Mutant(
        name="version-not-compared",
        mistake="the state is read in one step and written in another, which does not look whether it is still that",
        backend="mysql-version",
        server=_server(VersionServer, CheckThenSet),
    ),
    Mutant(
        name="version-of-any-age",
        mistake="a lock that is free is taken, however long ago that was decided, and by whom",
        backend="mysql-version",
        server=_server(VersionServer, AnyVersion),
        kinds=frozenset({"slow", "cancel"}),
    ),
    Mutant(
        name="version-freed-blindly",
        mistake="a release empties the lock's row, whoever's it is",
        backend="mysql-version",
        server=_server(VersionServer, FreesBlindly),
    ),
    Mutant(
        name="version-by-client-clock",
        mistake="the client's clock is sent along, and the lock goes by it",
        backend="mysql-version",
        server=_server(VersionServer, ClientClock, backend=_asking(VersionBackend, _ClientTime)),
    ),
    Mutant(
        name="version-never-outdated",
        mistake="who leaves draws no new version: an enter of its own that comes later takes the lock for nobody",
        backend="mysql-version",
        server=_server(VersionServer, NothingIsOutdated),
        kinds=frozenset({"slow", "cancel"}),
    ),
    Mutant(
        name="version-is-the-clock",
        mistake="the version is the server's clock, and the last one does not count",
        backend="mysql-version",
        server=_server(VersionServer, FenceByClock),
        kinds=frozenset({"step_clock"}),
    ),
    Mutant(
        name="unique-check-then-insert",
        mistake="whether the lock is free is looked at in one statement, and it is taken in another",
        backend="mysql",
        server=_server(UniqueServer, TakesBlindly, backend=_asking(UniqueBackend, _LooksFirst)),
    ),
    Mutant(
        name="unique-takes-past-the-line",
        mistake="a lock without an exclusive holder is taken although others share it, or wait for it",
        backend="mysql",
        server=_server(UniqueServer, TakesPastTheLine),
    ),
    Mutant(
        name="unique-freed-blindly",
        mistake="a release empties the lock's row, whoever's it is",
        backend="mysql",
        server=_server(UniqueServer, FreesBlindly),
    ),
    Mutant(
        name="unique-by-client-clock",
        mistake="the client's clock is sent along, and the tables go by it",
        backend="mysql",
        server=_server(UniqueServer, ClientClock, backend=_asking(UniqueBackend, _ClientTime)),
    ),
    Mutant(
        name="unique-nobody-is-remembered",
        mistake="nobody remembers who left: an enter that comes after its own leave takes the lock for nobody",
        backend="mysql",
        server=_server(UniqueServer, NobodyIsRemembered),
        kinds=frozenset({"slow", "cancel"}),
    ),
    Mutant(
        name="unique-nothing-runs-out",
        mistake="rows of the dead stay for ever",
        backend="mysql",
        server=_server(UniqueServer, NothingRunsOut),
    ),
    Mutant(
        name="unique-reaps-by-number",
        mistake="the reaper goes by when a lock was last taken, and removes leases that are alive",
        backend="mysql",
        server=_server(UniqueServer, ReapsByNumber),
    ),
    Mutant(
        name="unique-fence-by-clock",
        mistake="the fence is the server's clock, and the last one does not count",
        backend="mysql",
        server=_server(UniqueServer, FenceByClock),
        kinds=frozenset({"step_clock"}),
    ),
    Mutant(
        name="unique-woken-alone",
        mistake="of a dead client's waiters only the next is woken and lapses, so they keep a free lock in turn",
        backend="mysql",
        server=_server(UniqueServer, WokenAlone),
        by_seeds=False,  # the usual clients wait for one lock at a time
    ),
    Mutant(
        name="unique-deleted-with-its-tickets",
        mistake="a lock whose row was deleted by hand is taken although it has readers",
        backend="mysql",
        server=_server(UniqueServer, DeletedWithItsTickets),
        kinds=frozenset({"lose_reply"}),
    ),
    *(
        Mutant(
            name=f"{method}-clock-never-goes-back",
            mistake="a lease ends late by as much as the server's clock was set back since its renewal",
            backend=backend,
            server=_server(server, ClockNeverGoesBack),
            kinds=frozenset({"crash", "step_clock"}),
        )
        for method, backend, server in (
            ("unique", "mysql", UniqueServer),
            ("row", "mysql-row", RowServer),
            ("version", "mysql-version", VersionServer),
        )
    ),
    Mutant(
        name="unique-any-owner-is-kin",
        mistake="who has an owner is in at once if anybody is who has one, whoever's that is",
        backend="mysql",
        server=_server(UniqueServer, AnyOwnerIsKin),
        by_seeds=False,  # the usual clients have no owners
    ),
    Mutant(
        name="unique-kin-with-its-own-fence",
        mistake="those of one owner are in together, each with a fence of its own",
        backend="mysql",
        server=_server(UniqueServer, KinWithAFenceOfItsOwn),
        by_seeds=False,  # likewise
    ),
    Mutant(
        name="unique-kin-draws-again",
        mistake="an enter that comes late draws a new fence for a ticket that is in, and others of its owner get that",
        backend="mysql",
        server=_server(UniqueServer, KinDrawsAgain),
        by_seeds=False,  # likewise
    ),
    Mutant(
        name="unique-mark-in-two-steps",
        mistake="whether a mark is lower is looked at in one statement, and it is raised in another",
        backend="mysql",
        server=_server(UniqueServer, MarksBlindly, backend=_asking(UniqueBackend, _MarksInTwoSteps)),
        by_seeds=False,  # nor do they raise marks
    ),
    Mutant(
        name="row-gate-is-the-lock",
        mistake="a locked row is taken for the lock: it ends with its connection, while its holder works on",
        backend="mysql-row",
        server=_server(RowServer, TakesBlindly),
        kinds=frozenset({"drop"}),
    ),
    Mutant(
        name="row-waits-for-itself",
        mistake="who has a lease without knowing, and lost its gate, waits at the gate for who waits for that lease",
        backend="mysql-row",
        server=_server(RowServer, Tables, backend=WaitsForItself),
        kinds=frozenset({"lose_reply", "drop"}),
        budget=1000,
    ),
    Mutant(
        name="row-nobody-is-expelled",
        mistake="a connection that keeps the gate without a lease, as that of a stopped process, keeps all others out",
        backend="mysql-row",
        server=NobodyIsExpelled,
        by_seeds=False,  # in a healed world no process is stopped
    ),
    Mutant(
        name="row-expelled-alone",
        mistake="each waiter of a stopped process has the gate in turn, until its connection is ended",
        backend="mysql-row",
        server=ExpelledAlone,
        by_seeds=False,  # in a healed world no process is stopped
    ),
    Mutant(
        name="row-kills-by-number",
        mistake="the number of a connection is read, then killed, when it may belong to the next lease already",
        backend="mysql-row",
        server=KillsByNumber,
        by_seeds=False,  # it takes one world in a thousand
    ),
]
