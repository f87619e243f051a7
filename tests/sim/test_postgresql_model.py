"""Hazard: the model of the tables differs from PostgreSQL. The same steps run on the model and on a real server.

The statements are those that ship. Only the server's clock is replaced, by one that the test sets: so both sides have
the same time, and every answer, notification, drawn number and column of every row has to be equal.
"""

from __future__ import annotations

import dataclasses
import random
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from psycopg.pq import ExecStatus, PGconn

from holdfast.backends.postgresql.io import connection, connections
from holdfast.backends.postgresql.port import Row, Statement, Value
from holdfast.backends.postgresql.protocol import advisory, polled
from holdfast.backends.postgresql.protocol import queue as protocol
from holdfast.backends.postgresql.protocol.queue import encode_name
from holdfast.backends.postgresql.sql import FENCE_IDLE, quoted, tables_ddl
from holdfast.backends.sql_protocol import us
from holdfast.core.tickets import WAITER_LEASE, WOKEN_LEASE
from holdfast_lab.sim.mutants import postgresql as mutants
from holdfast_lab.sim.servers.postgresql.tables import REAPED_MAX, Lock, Register, StoredRecord, Tables, Ticket
from tests.support.postgresql import shared

# The channels of two clients with sessions, of one without a session, and of one of an older version.
CHANNELS = (*(connections.CHANNEL + letter * 32 for letter in "abc"), "holdfast_d")
GONE = CHANNELS[2]
OURS = CHANNELS[0]  # the client in whose session the steps are executed
NAMES = tuple(map(encode_name, ("plain", "with 'quotes\", {braces} and \\, ", "Ünïcode 🔒 ", "zero\0byte")))
SHAPES = ((1, True), (1, True), (None, False), (2, False))  # limit, exclusive
OWNERS = ("", "", "o", "o", "o", "p'\\", "p'\\")
REGISTER_NAMES = (*NAMES[:2], NAMES[0] + "x" * 16)
TTLS = (1, us(1.5), us(30.0), us(30.0))
FREE, TAKEN = 7001, 7002  # advisory locks
SEEDS = (0, 5, 8, 24)  # with these seeds every case of SEEN happens
WRONG_SEEDS = (0, 10, *range(1, 10), *range(11, 40))  # for a wrong model: seed 0 detects most of them, seed 10 one
BEGIN = 1_700_000_000_000_000

_CLOCK = """CREATE OR REPLACE FUNCTION {schema}.holdfast_clock() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT current_setting('test.now')::bigint
$$"""
_COLUMNS = {
    "holdfast_locks": [field.name for field in dataclasses.fields(Lock)],
    "holdfast_tickets": [field.name for field in dataclasses.fields(Ticket)],
    "holdfast_marks": [field.name for field in dataclasses.fields(Register)],
    "holdfast_records": [field.name for field in dataclasses.fields(StoredRecord)],
}
_MORE_ACQUIRES = (protocol._TRY_ACQUIRE_OWNER, protocol._TRY_ACQUIRE_ALL)
_REAP = Statement("holdfast_reap", "SELECT {schema}.holdfast_reap($1)")
_REAP_REGISTERS = Statement("holdfast_reap_marks", "SELECT {schema}.holdfast_reap_marks($1)")
_REAP_RECORDS = Statement("holdfast_reap_records", "SELECT {schema}.holdfast_reap_records($1)")
_DELETE = Statement("delete", "DELETE FROM {schema}.holdfast_locks WHERE name = $1")
_OPENED = Statement("opened", "SELECT set_config('holdfast.opened', $1, false)")
_OTHER_METHOD = Statement(
    "other_method", "UPDATE {schema}.holdfast_locks SET method = 'advisory' WHERE name = $1 AND nonce IS NOT NULL"
)


class Real:
    """Tables on a server, in a session with the settings of holdfast."""

    def __init__(self, conninfo: str) -> None:
        self._pgconn = PGconn.connect(conninfo.encode())
        name = f"model_{uuid.uuid4().hex}"
        self._schema = quoted(name)
        self.query(connections._SETTINGS)
        self.query(connections.session_setup(OURS))
        self.query(f"CREATE SCHEMA {self._schema}; {tables_ddl(name)}")
        for channel in CHANNELS:
            self.query(f'LISTEN "{channel}"')
        self._other_session = PGconn.connect(conninfo.encode())
        self._other_session.exec_(f"SELECT pg_advisory_lock({TAKEN})".encode())
        self._other_session.exec_(connections.session_setup(CHANNELS[1]).encode())

    def query(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        sql = sql.replace("{schema}", self._schema)
        if values:
            result = self._pgconn.exec_params(sql.encode(), connection._encoded(values))
        else:
            result = self._pgconn.exec_(sql.encode())
        assert result.status in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK), result.get_error_message()
        return [
            tuple(_decoded(result.get_value(row, column)) for column in range(result.nfields))
            for row in range(result.ntuples)
        ]

    def set_clock(self, now: int) -> None:
        self.query("SELECT set_config('test.now', $1, false)", [str(now)])

    def notified(self) -> list[tuple[str, str]]:
        self._pgconn.consume_input()
        notifications = []
        while (notification := self._pgconn.notifies()) is not None:
            notifications.append((notification.relname.decode(), notification.extra.decode()))
        return notifications

    def rows(self, table: str) -> list[Row]:
        columns = ", ".join(f'"{column}"' for column in _COLUMNS[table])
        order = "name, number" if "number" in _COLUMNS[table] else "name"
        return self.query(f"SELECT {columns} FROM {{schema}}.{table} ORDER BY {order}")  # noqa: S608  (our own words)

    def close(self) -> None:
        self._pgconn.finish()
        self._other_session.finish()


class Modelled(Tables):
    """The model, and its notifications."""

    def __init__(self) -> None:
        self.now = BEGIN
        self._notified: list[tuple[str, str]] = []
        super().__init__(
            lambda: self.now, lambda channel, nonce: self._notified.append((channel, nonce)), self._is_gone
        )
        self.caller = OURS
        self.opened = BEGIN
        self.seen: Counter[str] = Counter()

    def lapse(self, ticket: Ticket, now: int, head: int, caller: str | None) -> str | None:
        is_expired, waits = ticket.expires <= now, ticket.fence is None
        lapsed = super().lapse(ticket, now, head, caller)
        self.seen[f"{'expired' if is_expired else 'gone'} {'waiter' if waits else 'holder'}: {lapsed}"] += 1
        return lapsed

    def reap(self, now: int) -> int:
        reaped = super().reap(now)
        self.seen["reaped"] += reaped > 0
        return reaped

    def is_set_back(self, renewed: int, now: int) -> bool:
        self.seen["clock set back"] += renewed > now
        return super().is_set_back(renewed, now)

    def _is_gone(self, channel: str, renewed: int | None) -> bool:
        return channel == GONE and renewed is not None and renewed > self.opened

    def reap_rows(self, now: int) -> list[Row]:
        return [(str(self.reap(now)),)]

    def reap_marks_rows(self, now: int) -> list[Row]:
        return [(str(self.reap_registers(now)),)]

    def reap_records_rows(self, _now: int) -> list[Row]:
        return [(str(self.reap_expired_records(REAPED_MAX)),)]

    def reap_expired_records(self, rows: int) -> int:
        reaped = super().reap_expired_records(rows)
        self.seen["records reaped"] += reaped > 0
        return reaped

    def pass_rows(self, *values: Any) -> list[Row]:
        """With an advisory lock: FREE is free for us, TAKEN is held by another session."""
        name, nonce, ttl, key, is_gated, stays, agent, info = values
        row = self.pass_(name, nonce, ttl, (agent, info), has_advisory_lock=is_gated or key == FREE)
        is_kept = row[0] == "in" or (row[0] == "wait" and stays)
        return [(*row, "t" if (is_gated or key == FREE) and is_kept else "f")]

    def notified(self) -> list[tuple[str, str]]:
        """Notifications without duplicates, as in one transaction."""
        notified, self._notified = self._notified, []
        return list(dict.fromkeys(notified))

    def rows(self, table: str) -> list[Row]:
        every: dict[str, list[Any]] = {
            "holdfast_locks": [*self.locks.values()],
            "holdfast_tickets": self.tickets,
            "holdfast_marks": [*self.registers.values()],
            "holdfast_records": [*self.records.values()],
        }
        rows = every[table]
        values = [[getattr(row, column) for column in _COLUMNS[table]] for row in rows]
        values.sort(key=lambda row: (row[0].encode(), row[1]))
        return [tuple(map(_as_text, row)) for row in values]


def _decoded(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _as_text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "t" if value else "f"
    return "{" + ",".join(value) + "}" if isinstance(value, tuple) else str(value)


@pytest.fixture
def real() -> Iterator[Real]:
    server = Real(shared.server().url)
    yield server
    server.close()


class Steps:
    """Random steps of three clients at random times, executed on both sides."""

    def __init__(self, real: Real, seed: int, model: type[Modelled] = Modelled) -> None:
        self._real = real
        self._real.query(_CLOCK)
        for table in _COLUMNS:
            self._real.query(f"TRUNCATE {{schema}}.{table}")
        self.model = model()
        self._real.query(_OPENED.sql, [str(BEGIN)])
        self._draw = random.Random(seed)  # noqa: S311  (it has to be repeatable)
        self._tickets: list[tuple[str, str, int | None, bool, str]] = []  # name, nonce, limit, exclusive, owner
        self._fences = [1]
        # In every other run little time passes and there are few locks, so that many tickets contend.
        self._moments, self._names = (20, NAMES) if seed % 2 else (100, NAMES[:2])
        self.seen: Counter[str] = Counter()

    def step(self) -> None:
        self._pass_time()
        statement, values = self._next()
        self._real.set_clock(self.model.now)
        if statement in (_OTHER_METHOD, _DELETE, _OPENED):
            self._real.query(statement.sql, values)
            answer = expected = []
            lock = self.model.locks.get(str(values[0]))
            if statement is _OPENED:
                self.model.opened = int(values[0] or 0)
            elif statement is _DELETE:
                self.model.locks.pop(str(values[0]), None)
            elif lock is not None and lock.nonce is not None:
                lock.method = "advisory"
        else:
            expected = self._real.query(statement.sql, values)
            answer = self.model.run(statement, values)
        description = f"{statement.name} {values} at {self.model.now}"
        assert answer == expected, description
        notifications = self._real.notified()
        assert self.model.notified() == notifications, description
        for table in _COLUMNS:
            assert self.model.rows(table) == self._real.rows(table), description
        self._note(statement, values, expected, notifications)

    def _note(
        self, statement: Statement, values: Sequence[Value], rows: list[Row], notifications: list[tuple[str, str]]
    ) -> None:
        self.seen[statement.name] += 1
        self.seen["notification"] += len(notifications)
        self.seen["adopted"] += statement is protocol._ADOPT and bool(rows)
        self.seen["holdfast_advance_register: refused"] += statement is protocol._ADVANCE_REGISTER and not rows
        if statement is protocol._EXTEND_TURN:
            self.seen[f"extend_turn: {'gone' if not rows else 'refused' if rows[0][0] is None else 'extended'}"] += 1
            return
        if statement is protocol._RELEASE_AND_QUEUE:
            self.seen[f"release_and_queue: {rows[0][0]} {rows[0][1]}"] += 1
            return
        if statement is protocol._RENEW_ALONE:
            how = "gone" if not rows else "used" if rows[0][0] == str(values[2]) else "not used"
            self.seen[f"renew_alone: {how}"] += 1
            return
        if statement is protocol._SWAP_RECORD:
            how = "none" if not rows else "own" if rows[0][0] == values[2] else "other"
            self.seen[f"swap_record of {'one' if values[1] else 'none'}: {how}"] += 1
            return
        if statement is protocol._READ_RECORD:
            self.seen["read_record: found"] += len(rows)
            return
        is_all = statement is protocol._TRY_ACQUIRE_ALL and {row[0] for row in rows} == {"in"} and len(rows) > 1
        self.seen["holdfast_enter_all: all"] += is_all
        for row in rows:
            self.seen[f"{statement.name}: {row[0] if statement is not protocol._INSPECT else 'found'}"] += 1
            if statement in (protocol._FAST_ACQUIRE, protocol._TRY_ACQUIRE, *_MORE_ACQUIRES, advisory._TRY_ACQUIRE):
                fence = row[statement is not protocol._FAST_ACQUIRE]
                self.seen["in together"] += fence is not None and self._fences[-1] == int(fence)
                self._fences += [] if fence is None else [int(fence)]

    def _pass_time(self) -> None:
        """Let time pass: a moment, until a lease ends or nearly, or until `departed` expires; or set the clock back."""
        draw, model = self._draw, self.model
        leases = [lock.expires for lock in model.locks.values() if lock.expires is not None and lock.nonce is not None]
        leases += [ticket.expires for ticket in model.tickets]
        leases += [register.expires for register in model.registers.values()]
        leases += [record.expires for record in model.records.values()]
        leases += [lock.departed_until for lock in model.locks.values() if lock.departed_until is not None]
        ends = [end for end in leases if model.now <= end < model.now + us(60.0)]
        (how,) = draw.choices(["moment", "end", "much", "hour", "back"], weights=[self._moments, 3, 2, 0.6, 0.5])
        if how == "end" and ends:
            model.now = draw.choice(ends) + draw.choice((-1, 0, 0, 1))
        elif how == "much":
            model.now += draw.choice((us(WOKEN_LEASE), us(WAITER_LEASE), us(5.0))) + draw.choice((-1, 0, 1))
        elif how == "hour":
            model.now += us(FENCE_IDLE) + draw.choice((-1, 0, 1, us(60.0)))
        elif how == "back":
            model.now -= draw.randrange(us(draw.choice((2.0, 60.0))))
        else:
            model.now += draw.randrange(1000)
        if draw.random() < 0.2:
            model.now &= ~255  # a new row triggers the reaper at this time

    def _next(self) -> tuple[Statement, list[Value]]:
        draw = self._draw
        often = {
            "fast acquire": 4,
            "try acquire": 6,
            "again": 5,
            "fast release": 2,
            "release": 4,
            "release all": 1,
            "release and queue": 2,
            "renew": 2,
            "renew all": 1,
            "break": 1,
            "adopt": 2,
            "extend": 3,
            "renew alone": 2,
            "holder": 1,
            "inspect": 1,
            "locks": 0.5,
            "reap": 0.8,
            "pass": 2,
            "poll": 0.5,
            "poll queue": 2,
            "try acquire all": 2,
            "advance register": 2,
            "read registers": 0.5,
            "reap registers": 0.5,
            "swap record": 4,
            "read record": 1,
            "reap records": 0.5,
            "other method": 0.2,
            "delete": 0.3,
            "opened": 0.3,
        }
        (verb,) = draw.choices([*often], weights=[*often.values()])
        if verb in ("fast acquire", "try acquire") or not self._tickets:
            verb = verb if verb == "fast acquire" else "try acquire"
            limit, exclusive = draw.choice(SHAPES) if verb == "try acquire" else (1, True)
            owner = draw.choice(OWNERS) if verb == "try acquire" and exclusive else ""
            name = f"used once {len(self._tickets)}" if draw.random() < 0.1 else draw.choice(self._names)
            self._tickets.append((name, f"{len(self._tickets):032x}", limit, exclusive, owner))
        ticket = self._tickets[-1] if verb in ("fast acquire", "try acquire") else draw.choice(self._tickets[-12:])
        name, nonce, limit, exclusive, owner = ticket
        agent, info, ttl = draw.choice(["main", "tâsk 'x'"]), '{"who": {}}', draw.choice(TTLS)
        some = sorted(
            {*draw.sample(self._tickets[-12:], k=min(3, len(self._tickets)))},
            key=lambda ticket: (ticket[0].encode(), ticket[1]),
        )
        names, nonces = protocol._array([ticket[0] for ticket in some]), protocol._array([ticket[1] for ticket in some])
        match verb:
            case "fast acquire":
                return protocol._FAST_ACQUIRE, [name, nonce, ttl, agent, info]
            case "try acquire" | "again":
                queue, channel = draw.random() < 0.8, draw.choice(CHANNELS)
                if owner:
                    return protocol._TRY_ACQUIRE_OWNER, [name, nonce, ttl, queue, agent, info, channel, owner]
                return protocol._TRY_ACQUIRE, [name, nonce, ttl, exclusive, limit, queue, agent, info, channel]
            case "try acquire all":
                return protocol._TRY_ACQUIRE_ALL, self._many()
            case "advance register":
                number = draw.choice((1, 2, 3, 2**63 - 1)) if draw.random() < 0.1 else self.model.now // us(3.0)
                return protocol._ADVANCE_REGISTER, [
                    draw.choice(REGISTER_NAMES),
                    number,
                    draw.choice("ab"),
                    draw.choice(TTLS),
                ]
            case "read registers":
                return protocol._READ_REGISTERS, [
                    protocol._array(draw.sample(REGISTER_NAMES, k=draw.randrange(len(REGISTER_NAMES) + 1)))
                ]
            case "reap registers":
                return _REAP_REGISTERS, [self.model.now]
            case "swap record":
                stored = self.model.records.get(name)
                guess = nonce if stored is None or draw.random() < 0.3 else stored.nonce
                new = draw.choice((None, (nonce, info), (nonce, "é😀'\\"), (self._tickets[-1][1], "")))
                expected = draw.choice(("", guess, guess)) if new else guess
                keep = draw.choice((us(1.5), us(30.0)))
                return protocol._SWAP_RECORD, [name, expected, *(new or (None, None)), keep]
            case "read record":
                return protocol._READ_RECORD, [name]
            case "reap records":
                return _REAP_RECORDS, [self.model.now]
            case "fast release":
                return protocol._FAST_RELEASE, [name, nonce]
            case "release":
                return protocol._RELEASE, [name, nonce, draw.random() < 0.3]
            case "release and queue":
                lock = self.model.locks.get(name)
                holder = nonce if lock is None or lock.nonce is None else lock.nonce
                self._tickets.append((name, f"{len(self._tickets):032x}", 1, True, ""))
                old, following = draw.choice((holder, holder, nonce)), self._tickets[-1][1]
                return protocol._RELEASE_AND_QUEUE, [name, old, following, ttl, agent, info, draw.choice(CHANNELS)]
            case "release all":
                return protocol._RELEASE_ALL, [names, nonces, protocol._array(draw.choices("tf", k=len(some)))]
            case "renew":
                return protocol._RENEW, [name, nonce, ttl]
            case "renew all":
                ttls = [str(draw.choice(TTLS)) for _ in some]
                return protocol._RENEW_ALL, [names, nonces, protocol._array(ttls)]
            case "break":
                return protocol._BREAK, [name, draw.choice(self._fences[-6:])]
            case "adopt":
                lock = self.model.locks.get(name)
                holder = nonce if lock is None or lock.nonce is None else lock.nonce
                self._tickets.append((name, f"{len(self._tickets):032x}", 1, True, ""))
                old, adopter = draw.choice((holder, holder, nonce)), self._tickets[-1][1]
                is_remembered = lock is not None and (lock.departed_until or 0) > self.model.now
                if lock is not None and lock.departed and is_remembered and draw.random() < 0.5:
                    adopter = lock.departed[-1]
                    self.seen["adopted by a released ticket"] += old == lock.nonce
                return protocol._ADOPT, [name, old, adopter, ttl, agent, info]
            case "extend" | "renew alone":
                lock = self.model.locks.get(name)
                holder = nonce if lock is None or lock.nonce is None else lock.nonce
                nonce = draw.choice((holder, holder, holder, nonce))
                if verb == "extend":
                    fences, may_stay = draw.choice((1, 2, 64)), draw.random() < 0.5
                    return protocol._EXTEND_TURN, [name, nonce, fences, may_stay, ttl, agent, info]
                drawn = 1 if lock is None else lock.drawn
                fence = draw.choice((drawn, drawn - 1, drawn + 1, draw.choice(self._fences[-3:])))
                return protocol._RENEW_ALONE, [name, nonce, fence, ttl, agent, info]
            case "holder":
                return protocol._HOLDER, [name]
            case "inspect":
                return protocol._INSPECT, [name]
            case "locks":
                return protocol._LOCKS, [draw.choice(["", name[:1], name])]
            case "pass":
                key, is_gated, stays = draw.choice((FREE, FREE, TAKEN)), draw.random() < 0.2, draw.random() < 0.5
                return advisory._TRY_ACQUIRE, [name, nonce, ttl, key, is_gated, stays, agent, info]
            case "poll":
                return advisory._POLL, [name]
            case "poll queue":
                values = [name, nonce, limit, None if limit is None else draw.choice((limit, 64)), owner or None]
                return polled._POLL, [*values, us(WOKEN_LEASE)]
            case "reap":
                return _REAP, [self.model.now + draw.choice((0, 0, us(10.0), -us(10.0)))]
            case "delete":
                return _DELETE, [name]
            case "opened":
                return _OPENED, [str(self.model.now - draw.choice((0, us(5.0), us(50.0))))]
            case _:
                return _OTHER_METHOD, [name]

    def _many(self) -> list[Value]:
        """A new or an old ticket for each of some locks, used and unused."""
        draw = self._draw
        names = sorted({*draw.choices(self._names, k=2), *(f"one of many {draw.randrange(200)}" for _ in range(2))})
        some = []
        for name in names:
            before = [ticket for ticket in self._tickets[-12:] if ticket[0] == name and ticket[3]]
            if before and draw.random() < 0.7:
                some.append(draw.choice(before))
            else:
                some.append((name, f"{len(self._tickets):032x}", 1, True, draw.choice(OWNERS)))
                self._tickets.append(some[-1])
        ttls = [str(draw.choice(TTLS)) for _ in some]
        columns = [names, [ticket[1] for ticket in some], ttls, ['a"g\\'] * len(some), ['{"who": {}}'] * len(some)]
        return [*map(protocol._array, [*columns, [ticket[4] for ticket in some]]), draw.choice(CHANNELS)]


SEEN = {
    *("holdfast_enter: in", "holdfast_enter: wait", "holdfast_enter: gone", "holdfast_enter: limit"),
    *("holdfast_fast_release: t", "holdfast_leave: t", "holdfast_leave: f", "holdfast_renew: t", "holdfast_renew: f"),
    *("holdfast_break: t", "holdfast_inspect: found", "notification", "reaped", "holdfast_reap: 1"),
    *("holdfast_pass: in", "holdfast_pass: wait", "holdfast_pass: gone", "holdfast_pass: method", "holdfast_poll"),
    *("holdfast_poll_queue: t", "holdfast_poll_queue: f"),
    *("holdfast_enter: method", "holdfast_leave_all", "holdfast_renew_all", "holdfast_locks"),
    *("holdfast_enter_owner: in", "holdfast_enter_owner: wait", "holdfast_enter_owner: gone", "in together"),
    *("holdfast_enter_owner: method", "holdfast_enter_all: in", "holdfast_enter_all: wait", "holdfast_enter_all: gone"),
    *(
        "holdfast_advance_register: None",
        "holdfast_advance_register: 0",
        "holdfast_advance_register: 1",
        "holdfast_advance_register: refused",
        "holdfast_read_registers",
    ),
    *("holdfast_reap_marks: 1", "holdfast_enter_all: all", "delete", "opened"),
    *("expired waiter: ticket", "expired waiter: client", "gone waiter: client", "expired holder: ticket"),
    *("extend_turn: extended", "extend_turn: refused", "extend_turn: gone"),
    *("release_and_queue: t wait", "release_and_queue: f wait", "release_and_queue: f in"),
    *("renew_alone: used", "renew_alone: not used", "renew_alone: gone"),
    *("adopted", "adopted by a released ticket", "holdfast_holder", "clock set back"),
    *("swap_record of none: own", "swap_record of none: other", "read_record: found", "records reaped"),
    *("swap_record of one: own", "swap_record of one: other", "swap_record of one: none"),
}


def compare(steps: Steps) -> None:
    for _ in range(400):
        steps.step()


def test_the_model_does_each_step_as_the_server_does(real: Real) -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        steps = Steps(real, seed)
        compare(steps)
        seen += steps.seen + steps.model.seen

    assert set() == SEEN - set(seen), "every case must have been compared"


WRONG_MODELS = [
    mutants.GrantsAnyOwner,
    mutants.DeadWaitersInTurn,
    mutants.FenceByClock,
    mutants.ReleasesBlindly,
    mutants.IgnoresClockSetBack,
    mutants.RepeatDrawsNewFence,
    mutants.OwnerQueuedBehind,
    mutants.GrantClearsWaiters,
    mutants.RegisterWithoutNonce,
    mutants.RegisterOverwritten,
    mutants.NewRowsAreFree,
    mutants.ReleasesNotRemembered,
    mutants.RecordOverwritten,
    mutants.NothingExpires,
    mutants.ReapsByNumber,
    mutants.RenewalRecreates,
    mutants.RenewsBlindly,
    mutants.StoppedWaitersInTurn,
    mutants.AcquiresPastTheQueue,
    mutants.WokenKeepsItsLease,
]


@pytest.mark.parametrize("tables_type", WRONG_MODELS)
def test_a_wrong_model_is_detected(real: Real, tables_type: type[Tables]) -> None:
    wrong_model = type("WrongModel", (Modelled, tables_type), {})

    with pytest.raises(AssertionError, match="holdfast_"):
        for seed in WRONG_SEEDS:
            compare(Steps(real, seed, wrong_model))


def test_the_server_clock_has_microseconds_and_advances_during_a_transaction(real: Real) -> None:
    before = time.time()

    ((first,),) = real.query("BEGIN; SELECT {schema}.holdfast_clock()")
    ((second,),) = real.query("SELECT pg_sleep(0.001); SELECT {schema}.holdfast_clock()")

    real.query("COMMIT")
    assert before - 1.0 < int(first or 0) / 1e6 < time.time() + 1.0
    assert int(second or 0) - int(first or 0) >= 1000
