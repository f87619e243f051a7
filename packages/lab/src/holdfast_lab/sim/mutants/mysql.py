"""The mysql protocols with one bug each: common mistakes with rows as locks, and with versions of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.backends.mysql.port import Answer, Statement
from holdfast.backends.mysql.protocol import statements
from holdfast.backends.mysql.protocol.row import RowBackend
from holdfast.backends.mysql.protocol.unique import UniqueBackend
from holdfast.backends.mysql.protocol.version import VersionBackend
from holdfast.backends.sql_protocol import us
from holdfast_lab.sim.mutants.base import Mutant
from holdfast_lab.sim.servers.mysql.server import MysqlServer, UniqueServer, VersionServer
from holdfast_lab.sim.servers.mysql.tables import Lock, Tables
from holdfast_lab.sim.servers.mysql.tables import Ticket as Row
from holdfast_lab.sim.servers.mysql.values import Register, StoredRecord
from holdfast_lab.sim.servers.mysql.waiter_sessions import RowServer, SimConnection

if TYPE_CHECKING:
    from holdfast.backends.mysql.port import MysqlPort, Value
    from holdfast.backends.mysql.protocol.plain import State
    from holdfast.core.ports import Runtime
    from holdfast.core.tickets import Claim


def _server(base: type[MysqlServer], tables: type[Tables], **more: Any) -> type[MysqlServer]:
    return type("Mutated", (base,), {"tables_type": tables, **more})


class _Port:
    """A port that sends other statements."""

    def __init__(self, port: MysqlPort, runtime: Runtime) -> None:
        self._port = port
        self._runtime = runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)


def _with_port(backend: Callable[..., Any], port_type: type[_Port]) -> Callable[..., Any]:
    def open_backend(url: str, port: MysqlPort, runtime: Runtime) -> Any:
        return backend(url, port_type(port, runtime), runtime)

    return open_backend


# ── several methods ──────────────────────────────────────────────────────────────────────────────────────────────────


class ReleasesBlindly(Tables):
    def is_holder(self, lock: Lock, nonce: str) -> bool:
        return lock.nonce is not None


class FenceByClock(Tables):
    def draw(self, lock: Lock | None, now: int) -> int:
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


class VersionNotCurrent(Tables):
    def has_version(self, lock: Lock, version: int) -> bool:
        return True


class ConfirmsAnyGrant(Tables):
    def confirm_new_answer(self, keys: tuple[bytes, ...], nonces: tuple[str, ...], fences: tuple[int, ...]) -> Answer:
        return super().confirm_new_answer(keys, nonces, tuple(lock.fence or 0 for lock in self.locks.values()))


class VersionKeptByRelease(Tables):
    def bump_version_answer(self, key: bytes, nonce: str, remembered: int) -> Answer:
        return Answer()


# ── method=unique ────────────────────────────────────────────────────────────────────────────────────────────────────


class _ChecksFirst(_Port):
    async def execute(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> Answer:
        if statement is statements.FAST_ACQUIRE:
            state = await self._port.execute(statements.STATE, values[:1], deadline=deadline)
            for _, _, nonce, remaining, _, has_tickets, _ in state.rows:
                if has_tickets == "1" or (nonce is not None and int(remaining or 0) > 0):
                    return Answer()
        return await self._port.execute(statement, values, deadline=deadline)


class NewRowsAreFree(Tables):
    """A lock whose row an operator has deleted counts as free, although it has readers."""

    def hides_tickets(self, key: bytes) -> bool:
        return False


class AcquiresBlindly(NewRowsAreFree):
    def is_free(self, lock: Lock, now: int) -> bool:
        return True


class AcquiresPastTheQueue(NewRowsAreFree):
    def is_free(self, lock: Lock, now: int) -> bool:
        return lock.nonce is None or lock.expires <= now


class ReleasesNotRemembered(Tables):
    def remember_departed(self, key: bytes, name: str, nonce: str, now: int) -> None:
        pass


class NothingExpires(Tables):
    def has_expired(self, expires: int | None, now: int) -> bool:
        return False


class ReapsByNumber(Tables):
    """As if no lock could be held for three seconds."""

    def is_idle(self, lock: Lock, now: int) -> bool:
        return lock.drawn < now - us(3.0)


class WokenKeepsItsLease(Tables):
    def woken(self, expires: int, now: int) -> int:
        return expires


class WakesOneDeadWaiter(Tables):
    """The lease of the next waiter is shortened, but not the leases of the other waiters of its client."""

    def is_woken(self, claim: Row, next_ones: Sequence[Row]) -> bool:
        return claim in next_ones


class IgnoresClockSetBack(Tables):
    """A lease ends when the clock shows its expiry, even if the clock was set back since its renewal."""

    def rebase(self, lock: Lock, claims: Sequence[Row], now: int) -> None:
        pass

    def rebase_answer(self, key: bytes, renewed: int) -> Answer:
        return Answer()


class GrantsAnyOwner(Tables):
    """Any owner counts as the same owner."""

    def same_owner(self, key: bytes, owner: str) -> list[Row]:
        return [claim for claim in self._queue(key) if claim.fence is not None and claim.owner]


class OwnerWithTwoFences(Tables):
    def fence_of(self, same_owner: Sequence[Row], drawn: int) -> int:
        return drawn


class RepeatDrawsNewFence(Tables):
    """An earlier bug: a late try_acquire draws a new fence for a granted ticket that uses the old one."""

    _requested = ""

    def try_acquire_owned_answer(self, key: bytes, name: str, nonce: str, *values: Any) -> Answer:
        self._requested = nonce
        try:
            return super().try_acquire_owned_answer(key, name, nonce, *values)
        finally:
            self._requested = ""

    def same_owner(self, key: bytes, owner: str) -> list[Row]:
        return [claim for claim in super().same_owner(key, owner) if claim.nonce != self._requested]


# ── registers and records ────────────────────────────────────────────────────────────────────────────────────────────


class AdvancesBlindly(Tables):
    def is_lower(self, register: Register, number: int) -> bool:
        return True


class RecordOverwritten(Tables):
    def is_expected(self, record: StoredRecord | None, expected: str) -> bool:
        return True


class _ReadsRegisterFirst(_Port):
    async def execute(self, statement: Statement, values: Sequence[Value], *, deadline: float) -> Answer:
        if statement is statements.ADVANCE_REGISTER:
            key, _, number, *_ = values
            registers = await self._port.execute(statements.READ_REGISTERS, ((key,),), deadline=deadline)
            if any(int(known or 0) >= int(str(number)) for _, known in registers.rows):
                return Answer()
        return await self._port.execute(statement, values, deadline=deadline)


# ── method=row ───────────────────────────────────────────────────────────────────────────────────────────────────────


class WaitsForOwnLease(RowBackend):
    """An earlier bug: a ticket with an unknown lease waits for the row lock of a ticket that waits for that lease."""

    async def _release_own_lease(self, claim: Claim, state: State, deadline: float) -> bool:
        return False


class HolderNotTerminated(RowServer):
    """A session can keep the row lock without a lease."""

    def run(self, statement: Statement, values: Sequence[Value]) -> Answer:
        return Answer() if statement.name == "kill" else super().run(statement, values)


class TerminatesOneSession(RowServer):
    """Of a client that does not respond, only the session with the row lock is killed."""

    def run(self, statement: Statement, values: Sequence[Value]) -> Answer:
        return Answer() if statement.name == "same_client" else super().run(statement, values)


class KillsByNumber(RowServer):
    """One request reads the id of the connection, and another, which may be slow, kills it."""

    def run(self, statement: Statement, values: Sequence[Value]) -> Answer:
        if statement.name != "kill":
            return super().run(statement, values)
        connection = self.named_locks.get(str(values[0]).encode())
        if connection is not None:
            self.world.at(self.world.now + 3.0, self.when_running, self._kill, connection)
        return Answer()

    def _kill(self, connection: SimConnection) -> None:
        if not connection.is_over:
            self.terminate([connection])


MYSQL = [
    Mutant(
        name="version-not-compared",
        mistake="one step reads the state, and another writes it without comparing the version",
        backend="mysql-version",
        server=_server(VersionServer, CheckThenSet),
    ),
    Mutant(
        name="version-not-current",
        mistake="a free lock is acquired by any earlier decision, also one on an old version",
        backend="mysql-version",
        server=_server(VersionServer, VersionNotCurrent),
        kinds=frozenset({"slow", "cancel"}),
    ),
    Mutant(
        name="version-released-blindly",
        mistake="a release empties the row of the lock, even if another ticket holds it",
        backend="mysql-version",
        server=_server(VersionServer, ReleasesBlindly),
    ),
    Mutant(
        name="version-by-client-clock",
        mistake="the client's clock is sent to the server and used there",
        backend="mysql-version",
        server=_server(VersionServer, ClientClock, backend=_with_port(VersionBackend, _ClientTime)),
    ),
    Mutant(
        name="version-kept-by-release",
        mistake="a release draws no new version: a try_acquire that arrives after it acquires the lock for no client",
        backend="mysql-version",
        server=_server(VersionServer, VersionKeptByRelease),
        kinds=frozenset({"slow", "cancel"}),
    ),
    Mutant(
        name="version-is-the-clock",
        mistake="the version is the server's clock, without the last version as a floor",
        backend="mysql-version",
        server=_server(VersionServer, FenceByClock),
        kinds=frozenset({"step_clock"}),
    ),
    Mutant(
        name="unique-check-then-insert",
        mistake="one statement checks that the lock is free, and another acquires it",
        backend="mysql",
        server=_server(UniqueServer, AcquiresBlindly, backend=_with_port(UniqueBackend, _ChecksFirst)),
    ),
    Mutant(
        name="unique-acquires-past-the-queue",
        mistake="a lock without an exclusive holder is acquired although other tickets share it or wait for it",
        backend="mysql",
        server=_server(UniqueServer, AcquiresPastTheQueue),
    ),
    Mutant(
        name="unique-released-blindly",
        mistake="a release empties the row of the lock, even if another ticket holds it",
        backend="mysql",
        server=_server(UniqueServer, ReleasesBlindly),
    ),
    Mutant(
        name="unique-by-client-clock",
        mistake="the client's clock is sent to the server and used there",
        backend="mysql",
        server=_server(UniqueServer, ClientClock, backend=_with_port(UniqueBackend, _ClientTime)),
    ),
    Mutant(
        name="unique-releases-not-remembered",
        mistake="no memory of releases: a try_acquire that arrives after its release acquires the lock for no client",
        backend="mysql",
        server=_server(UniqueServer, ReleasesNotRemembered),
        kinds=frozenset({"slow", "cancel"}),
    ),
    Mutant(
        name="unique-confirms-any-grant",
        mistake="a late confirmation of a new row ends the lease that the same ticket was granted since",
        backend="mysql",
        server=_server(UniqueServer, ConfirmsAnyGrant),
        kinds=frozenset({"slow", "cancel", "lose_request"}),
        budget=1500,
    ),
    Mutant(
        name="unique-nothing-expires",
        mistake="rows of dead clients stay forever",
        backend="mysql",
        server=_server(UniqueServer, NothingExpires),
    ),
    Mutant(
        name="unique-reaps-by-number",
        mistake="the reaper checks only when a lock was last acquired, and removes live leases",
        backend="mysql",
        server=_server(UniqueServer, ReapsByNumber),
    ),
    Mutant(
        name="unique-fence-by-clock",
        mistake="the fence is the server's clock, without the last fence as a floor",
        backend="mysql",
        server=_server(UniqueServer, FenceByClock),
        kinds=frozenset({"step_clock"}),
    ),
    Mutant(
        name="unique-wakes-one-dead-waiter",
        mistake="of the waiters of a dead client only the next is woken and expires, so they block a free lock in turn",
        backend="mysql",
        server=_server(UniqueServer, WakesOneDeadWaiter),
        by_seeds=False,  # the usual clients wait for one lock at a time
    ),
    Mutant(
        name="unique-new-rows-are-free",
        mistake="a lock whose row an operator has deleted is acquired although it has readers",
        backend="mysql",
        server=_server(UniqueServer, NewRowsAreFree),
        kinds=frozenset({"lose_reply"}),
    ),
    *(
        Mutant(
            name=f"{method}-ignores-a-clock-set-back",
            mistake="a lease ends late by as much as the server's clock was set back since its renewal",
            backend=backend,
            server=_server(server, IgnoresClockSetBack),
            kinds=frozenset({"crash", "step_clock"}),
        )
        for method, backend, server in (
            ("unique", "mysql", UniqueServer),
            ("row", "mysql-row", RowServer),
            ("version", "mysql-version", VersionServer),
        )
    ),
    Mutant(
        name="unique-grants-any-owner",
        mistake="a ticket with an owner is granted together with a holder of any owner",
        backend="mysql",
        server=_server(UniqueServer, GrantsAnyOwner),
        by_seeds=False,  # the usual clients have no owners
    ),
    Mutant(
        name="unique-owner-with-two-fences",
        mistake="tickets of one owner hold the lock together, each with its own fence",
        backend="mysql",
        server=_server(UniqueServer, OwnerWithTwoFences),
        by_seeds=False,  # likewise
    ),
    Mutant(
        name="unique-repeat-draws-new-fence",
        mistake="a late try_acquire draws a new fence for a granted ticket, and other tickets of its owner get that",
        backend="mysql",
        server=_server(UniqueServer, RepeatDrawsNewFence),
        by_seeds=False,  # likewise
    ),
    Mutant(
        name="unique-register-in-two-steps",
        mistake="one statement reads a register, and another writes it",
        backend="mysql",
        server=_server(UniqueServer, AdvancesBlindly, backend=_with_port(UniqueBackend, _ReadsRegisterFirst)),
        by_seeds=False,  # the usual clients use no registers
    ),
    Mutant(
        name="unique-record-overwritten",
        mistake="a record is replaced without a comparison of its nonce",
        backend="mysql",
        server=_server(UniqueServer, RecordOverwritten),
        workload="once",
        kinds=frozenset({"pause"}),
    ),
    Mutant(
        name="row-lock-is-the-lock",
        mistake="the row lock is the lock: it ends with its connection, while its holder works on",
        backend="mysql-row",
        server=_server(RowServer, AcquiresBlindly),
        kinds=frozenset({"drop"}),
    ),
    Mutant(
        name="row-waits-for-own-lease",
        mistake="a ticket with an unknown lease, which lost its row lock, waits for a ticket that waits for that lease",
        backend="mysql-row",
        server=_server(RowServer, Tables, backend=WaitsForOwnLease),
        kinds=frozenset({"lose_reply", "drop"}),
        budget=1000,
    ),
    Mutant(
        name="row-holder-not-terminated",
        mistake="a connection with the row lock and without a lease, as of a stopped process, blocks all others",
        backend="mysql-row",
        server=HolderNotTerminated,
        by_seeds=False,  # in a healed world no process is stopped
    ),
    Mutant(
        name="row-terminates-one-session",
        mistake="each waiter of a stopped process gets the row lock in turn, until its connection is killed",
        backend="mysql-row",
        server=TerminatesOneSession,
        by_seeds=False,  # in a healed world no process is stopped
    ),
    Mutant(
        name="row-kills-by-number",
        mistake="the id of a connection is read, then killed when it may belong to the next lease already",
        backend="mysql-row",
        server=KillsByNumber,
        by_seeds=False,  # it takes one world in a thousand
    ),
]
