"""Hazard: the model of the tables differs from MariaDB. The same steps run on the model and on a real server.

The statements are those that ship, over the connections that ship. Only the clock of the session is set, so both sides
have the same time, and every answer, every number drawn and every column of every row has to be equal.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from holdfast.backends.mysql.config import config_of
from holdfast.backends.mysql.io.connections import Connections
from holdfast.backends.mysql.port import Answer, Row, Statement, Value
from holdfast.backends.mysql.protocol import statements as s
from holdfast.backends.mysql.protocol import version as v
from holdfast.backends.mysql.sql import FENCE_IDLE, WOKEN, lock_id
from holdfast.backends.net.blocking import BlockingPoller
from holdfast.backends.sql_protocol import us
from holdfast.core.tickets import WAITER_LEASE
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.url import parse
from holdfast_lab.sim.mutants import mysql as mutants
from holdfast_lab.sim.servers.mysql.tables import Lock, Tables, Ticket
from holdfast_lab.sim.servers.mysql.values import Register, StoredRecord
from tests.support.mysql import shared

NAMES = ("plain", "with 'quotes\", {braces} and \\, ", "Ünïcode 🔒 ", "zero\0byte")
SHAPES = ((1, True), (1, True), (None, False), (2, False))  # limit, exclusive
TTLS = (1, us(1.5), us(30.0), us(30.0))
CLIENTS = ("", "1" * 32, "1" * 32, "2" * 32)
OWNERS = ("", "ann", "ann", "Ann", "ann ", "änn")  # all different
SEEDS = (0, 4, 25, 31)  # with these seeds every case of SEEN happens
WRONG_SEEDS = (0, 5, *range(1, 5), *range(6, 20))  # for a wrong model: seed 0 detects most of them, seed 5 one
BEGIN = 1_700_000_000_000_000

_COLUMNS = {
    "holdfast_locks": [field.name for field in dataclasses.fields(Lock)],
    "holdfast_tickets": [field.name for field in dataclasses.fields(Ticket)],
    "holdfast_marks": [field.name for field in dataclasses.fields(Register)],
    "holdfast_records": [field.name for field in dataclasses.fields(StoredRecord)],
}
_WRITES = (
    s.FAST_ACQUIRE,
    s.FAST_RELEASE,
    v._CREATE,
    v._CAS_ACQUIRE,
    v._CAS_RELEASE,
    v._BUMP_VERSION,
    s.ADVANCE_REGISTER,
    s.REBASE,
    s.ADOPT,
    s.EXTEND_TURN,
)  # their count of changed rows is compared


DELETE = Statement("delete", "DELETE FROM holdfast_locks WHERE id = {0}")  # by an operator


class Real:
    """Tables on a server."""

    def __init__(self) -> None:
        self._runtime = ThreadRuntime()
        self._connections = Connections(config_of(parse(shared.fresh_url())), BlockingPoller(), self._runtime)

    def execute(self, statement: Statement, values: Sequence[Value]) -> Answer:
        return run_sync(self._connections.execute(statement, values, deadline=self._runtime.now() + 10.0))

    def query(self, sql: str) -> Sequence[Row]:
        return self.execute(Statement("query", sql), ()).rows

    def set_clock(self, now: int) -> None:
        """Set the clock of the session: all requests use the same connection."""
        self.query(f"SET timestamp = {now // 1_000_000}.{now % 1_000_000:06}")

    def rows(self, table: str) -> list[Row]:
        columns = ", ".join("HEX(id)" if column == "id" else f"`{column}`" for column in _COLUMNS[table])
        return sorted(self.query(f"SELECT {columns} FROM {table}"), key=str)  # noqa: S608  (our own words)

    def empty(self) -> None:
        for table in _COLUMNS:
            self.query(f"DELETE FROM {table}")  # noqa: S608  (our own words)

    def close(self) -> None:
        run_sync(self._connections.close())


class Modelled(Tables):
    """The model, with its clock."""

    def __init__(self) -> None:
        self.now = BEGIN
        super().__init__(lambda: self.now)

    def delete_answer(self, key: bytes) -> Answer:
        return Answer(int(self.locks.pop(key, None) is not None))

    def rows(self, table: str) -> list[Row]:
        tables: dict[str, Sequence[Lock | Ticket | Register | StoredRecord]] = {
            "holdfast_locks": [*self.locks.values()],
            "holdfast_tickets": self.tickets,
            "holdfast_marks": [*self.registers.values()],
            "holdfast_records": [*self.records.values()],
        }
        rows = tables[table]
        texts = [tuple(_as_text(getattr(row, column)) for column in _COLUMNS[table]) for row in rows]
        return sorted(texts, key=str)


def _as_text(value: str | bytes | int | tuple[str, ...] | None) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.hex().upper()
    return ",".join(value) if isinstance(value, tuple) else f"{value:d}"


@pytest.fixture(scope="module")
def real() -> Iterator[Real]:
    server = Real()
    yield server
    server.close()


class Steps:
    """Random steps of some clients at random times, executed on both sides."""

    def __init__(self, real: Real, seed: int, model: type[Modelled] = Modelled) -> None:
        self._real = real
        self._real.empty()
        self._model = model()
        self._draw = random.Random(seed)  # noqa: S311  (it has to be repeatable)
        self._names = NAMES if seed % 2 else NAMES[:1]  # with one lock, more tickets contend
        self._tickets: list[tuple[str, str, int | None, bool]] = []  # name, nonce, limit, exclusive
        self._owners: dict[str, str] = {}  # by nonce
        self._last_released: tuple[str, str, int | None, bool] | None = None  # the last ticket that was released
        self._fences = [1]
        self.seen: Counter[str] = Counter()

    def step(self) -> None:
        self._pass_time()
        statement, values = self._next()
        self._real.set_clock(self._model.now)
        expected = self._real.execute(statement, values)
        if statement in (s.TRY_ACQUIRE, s.TRY_ACQUIRE_OWNED):
            self.seen["set back"] += any(ticket.renewed > self._model.now for ticket in self._model.tickets)
        # The first value of this statement is the id of the lock, in bytes.
        if statement is s.ADOPT and (lock := self._model.locks.get(bytes(values[0]))) is not None:  # type: ignore[arg-type]
            is_holder, is_released = lock.nonce == values[1], values[2] in (lock.departed or ())
            self.seen["adopted by a released ticket"] += (
                is_holder and is_released and lock.departed_until > self._model.now
            )
        if statement is DELETE:
            self.seen["deleted with tickets"] += any(ticket.id == values[0] for ticket in self._model.tickets)
        before, registers = len(self._model.locks), len(self._model.registers)
        records = len(self._model.records)
        answer = self._model.run(statement, values)
        self.seen["reaped"] += len(self._model.locks) < before
        self.seen["registers reaped"] += len(self._model.registers) < registers
        self.seen["records reaped"] += statement is s.REAP_RECORDS and len(self._model.records) < records
        if statement is s.SWAP_RECORD:
            how = "none" if not answer.rows else "own" if answer.rows[0][0] == values[3] else "other"
            self.seen[f"swap_record of {'one' if values[2] else 'none'}: {how}"] += 1
        description = f"{statement.name} {values} at {self._model.now}"
        assert sorted(answer.rows, key=str) == sorted(expected.rows, key=str), description
        if statement in _WRITES:
            assert (answer.changed, answer.number) == (expected.changed, expected.number), description
        if statement is s.RENEW_ALONE:  # the server does not count a row that it has set to the same values
            assert answer.number == expected.number, description
            how = "none" if not expected.number else "used" if expected.number == values[2] else "not used"
            self.seen[f"renew_alone: {how}"] += 1
        for table in _COLUMNS:
            assert self._model.rows(table) == self._real.rows(table), description
        self._note(statement, expected)

    def _note(self, statement: Statement, answer: Answer) -> None:
        if statement in _WRITES:
            self.seen[f"{statement.name}: {answer.changed}"] += 1
            self._fences += [answer.number] if answer.number else []
        for row in answer.rows:
            has_outcome = statement.name in {"try_acquire", "try_acquire_owned", "release", "release_all", "break"}
            self.seen[f"{statement.name}: {row[0] if has_outcome else 'found'}"] += 1
            if statement is s.TRY_ACQUIRE_OWNED and row[0] == "in":
                self.seen["with the same fence"] += int(row[1] or 0) in self._fences
            self._fences += [int(row[1] or 0)] if statement in (s.TRY_ACQUIRE, s.TRY_ACQUIRE_OWNED) else []
            if statement.name == "fast_acquire_all":
                fences = [int(fence) for fence in (row[0] or "").split(",")[:-1]]
                self.seen[f"fast_acquire_all: {'all' if all(fences) else 'some' if any(fences) else 'none'}"] += 1
            if statement is s.FAST_RELEASE_ALL:
                self.seen[f"fast_release_all: {row[1]}"] += 1

    def _pass_time(self) -> None:
        """Let time pass: a moment, until a lease ends or nearly, or until `departed` expires; or set the clock back."""
        draw, model = self._draw, self._model
        leases = [lock.expires for lock in model.locks.values() if lock.nonce is not None]
        leases += [ticket.expires for ticket in model.tickets]
        leases += [lock.departed_until for lock in model.locks.values()]
        leases += [register.expires for register in model.registers.values()]
        leases += [record.expires for record in model.records.values()]
        ends = [end for end in leases if model.now <= end < model.now + us(60.0)]
        (how,) = draw.choices(["moment", "end", "much", "hour", "back"], weights=[20, 3, 2, 0.6, 0.5])
        if how == "end" and ends:
            model.now = draw.choice(ends) + draw.choice((-1, 0, 0, 1))
        elif how == "much":
            model.now += draw.choice((us(WOKEN), us(WAITER_LEASE), us(5.0))) + draw.choice((-1, 0, 1))
        elif how == "hour":
            model.now += us(FENCE_IDLE) + draw.choice((-1, 0, 1, us(60.0)))
        elif how == "back":
            model.now -= draw.randrange(us(draw.choice((2.0, 60.0))))
        else:
            model.now += draw.randrange(1000)

    def _next(self) -> tuple[Statement, list[Value]]:
        draw = self._draw
        often = {
            "fast_acquire": 4,
            "try_acquire": 6,
            "again": 5,
            "fast release": 2,
            "release": 4,
            "renew": 2,
            "break": 1,
            "adopt": 2,
            "extend": 3,
            "renew alone": 2,
            "holder fence": 1,
            "poll": 2,
            "inspect": 1,
            "locks": 0.5,
            "reap": 0.7,
            "state": 1,
            "rebase": 2,
            "confirm": 1.5,
            "delete": 0.7,
            "create": 1,
            "cas_acquire": 3,
            "cas release": 2,
            "bump_version": 1,
            "acquire all": 1.5,
            "fast release all": 0.7,
            "release all": 0.7,
            "advance_register": 2,
            "read registers": 0.5,
            "reap registers": 0.5,
            "swap record": 4,
            "read record": 1,
            "reap records": 0.5,
        }
        (verb,) = draw.choices([*often], weights=[*often.values()])
        if verb in ("fast_acquire", "try_acquire") or not self._tickets:
            verb = verb if verb == "fast_acquire" else "try_acquire"
            limit, exclusive = draw.choice(SHAPES) if verb == "try_acquire" else (1, True)
            name = f"used once {len(self._tickets)}" if draw.random() < 0.1 else draw.choice(self._names)
            self._tickets.append((name, f"{len(self._tickets):032x}", limit, exclusive))
            self._owners[self._tickets[-1][1]] = draw.choice(OWNERS) if verb == "try_acquire" and exclusive else ""
        ticket = self._tickets[-1] if verb in ("fast_acquire", "try_acquire") else draw.choice(self._tickets[-12:])
        if verb == "again" and self._last_released is not None and draw.random() < 0.2:
            ticket = self._last_released
        name, nonce, limit, exclusive = ticket
        owner = self._owners.get(nonce, "")
        key, agent, info, ttl = lock_id(name), draw.choice(["main", "tâsk 'x'"]), '{"who": {}}', draw.choice(TTLS)
        method = draw.choices(["unique", "row"], weights=[20, 1])[0]
        some = draw.sample(self._tickets[-12:], k=min(3, len(self._tickets)))
        lock = self._model.locks.get(key)
        client = draw.choice(CLIENTS)
        match verb:
            case "fast_acquire":
                return s.FAST_ACQUIRE, [key, name, nonce, ttl, agent, info, method]
            case "try_acquire" | "again":
                queue = draw.random() < 0.8
                if owner:
                    return s.TRY_ACQUIRE_OWNED, [key, name, nonce, ttl, queue, agent, info, owner, client]
                return s.TRY_ACQUIRE, [key, name, method, nonce, ttl, exclusive, limit, queue, agent, info, client]
            case "fast release":
                return s.FAST_RELEASE, [key, nonce]
            case "release":
                self._last_released = ticket
                return s.RELEASE, [key, name, nonce, draw.random() < 0.3]
            case "renew":
                return s.RENEW, [tuple(lock_id(ticket[0]) for ticket in some), tuple(ticket[1] for ticket in some), ttl]
            case "break":
                return s.BREAK, [key, draw.choice(self._fences[-6:])]
            case "adopt":
                holder = nonce if lock is None or lock.nonce is None else lock.nonce
                self._tickets.append((name, f"{len(self._tickets):032x}", 1, True))
                adopter = self._tickets[-1][1]
                if lock is not None and lock.departed and lock.departed_until > self._model.now and draw.random() < 0.5:
                    adopter = lock.departed[-1]
                return s.ADOPT, [key, draw.choice((holder, holder, nonce)), adopter, ttl, agent, info]
            case "extend" | "renew alone":
                holder = nonce if lock is None or lock.nonce is None else lock.nonce
                nonce = draw.choice((holder, holder, holder, nonce))
                if verb == "extend":
                    count, may_stay = draw.choice((1, 2, 64)), draw.random() < 0.5
                    return s.EXTEND_TURN, [key, nonce, count, may_stay, ttl, agent, info]
                drawn = 1 if lock is None else lock.drawn
                fence = draw.choice((drawn, drawn - 1, drawn + 1, draw.choice(self._fences[-3:])))
                return s.RENEW_ALONE, [key, nonce, fence, ttl, agent, info]
            case "holder fence":
                return s.HOLDER_FENCE, [key, nonce]
            case "poll" if owner:
                return s.POLL_OWNED, [key, nonce, owner]
            case "poll":
                return s.POLL, [key, nonce]
            case "inspect":
                return s.INSPECT, [key]
            case "locks":
                return s.LOCKS, [draw.choice(["", name[:1], name]).encode()]
            case "reap":
                return s.REAP, [draw.choice([bytes(32), key])]
            case "state":
                return s.STATE, [key]
            case "confirm":
                fences = tuple(draw.choices([lock.fence for lock in self._model.locks.values()] or [1], k=len(some)))
                keys = tuple(lock_id(ticket[0]) for ticket in some)
                return s.CONFIRM_NEW, [keys, tuple(ticket[1] for ticket in some), fences]
            case "rebase":
                return s.REBASE, [key, 1 if lock is None else lock.renewed]
            case "delete":
                return DELETE, [key]
            case "create":
                return v._CREATE, [key, name]
            case "cas_acquire":
                known = 1 if lock is None or draw.random() < 0.2 else lock.drawn
                return v._CAS_ACQUIRE, [key, nonce, known, ttl, agent, info]
            case "cas release":
                return v._CAS_RELEASE, [key, nonce]
            case "acquire all":
                return self._acquire_all(ttl, agent, info)
            case "fast release all":
                return s.FAST_RELEASE_ALL, [
                    tuple(lock_id(ticket[0]) for ticket in some),
                    tuple(ticket[1] for ticket in some),
                ]
            case "release all":
                values: list[Value] = []
                for its_name, its_nonce, *_ in some:
                    values += (lock_id(its_name), its_name, its_nonce, draw.random() < 0.3)
                return s.release_all(len(some)), values
            case "advance_register":
                number = draw.choice((1, 2, 3, draw.randrange(1, 50), 2**63 - 1 if draw.random() < 0.1 else 4))
                return s.ADVANCE_REGISTER, [key, name, number, draw.choice((nonce, self._tickets[-1][1])), ttl]
            case "read registers":
                return s.READ_REGISTERS, [tuple(lock_id(ticket[0]) for ticket in some)]
            case "reap registers":
                return s.REAP_REGISTERS, [draw.choice((1, 100))]
            case "swap record":
                stored = self._model.records.get(key)
                guess = nonce if stored is None or draw.random() < 0.3 else stored.nonce
                new = draw.choice((None, (nonce, info), (nonce, "é😀'\\"), (self._tickets[-1][1], "")))
                expected = draw.choice(("", guess, guess)) if new else guess
                keep = draw.choice((us(1.5), us(30.0)))
                return s.SWAP_RECORD, [key, name, expected, *(new or (None, None)), keep]
            case "read record":
                return s.READ_RECORD, [key]
            case "reap records":
                return s.REAP_RECORDS, [draw.choice((1, 100))]
            case _:
                return v._BUMP_VERSION, [key, nonce, us(WAITER_LEASE)]

    def _acquire_all(self, ttl: int, agent: str, info: str) -> tuple[Statement, list[Value]]:
        """New tickets, or the last ones again."""
        draw = self._draw
        names = [*NAMES, f"used once {len(self._tickets)}"]
        values: list[Value] = [ttl, agent, info]
        for name in sorted(draw.sample(names, k=draw.randrange(1, 4))):
            self._tickets.append((name, f"{len(self._tickets):032x}", 1, True))
            nonce = self._tickets[-1][1]
            if draw.random() < 0.2:
                nonce = next((ticket[1] for ticket in reversed(self._tickets[:-1]) if ticket[0] == name), nonce)
            values += (lock_id(name), name, nonce)
        return s.fast_acquire_all(len(values) // 3 - 1), values


SEEN = {
    *(
        "fast_acquire: 0",
        "fast_acquire: 1",
        "fast_acquire: 2",
        "fast_release: 0",
        "fast_release: 1",
        "release: 0",
        "release: 1",
        "break: 0",
        "break: 1",
    ),
    *(
        "try_acquire: in",
        "try_acquire: wait",
        "try_acquire: gone",
        "try_acquire: limit",
        "try_acquire: method",
        "renew: found",
        "poll: found",
    ),
    *("extend_turn: 0", "extend_turn: 1", "renew_alone: none", "renew_alone: used", "renew_alone: not used"),
    *("adopt: 0", "adopt: 1", "adopted by a released ticket", "holder_fence: found"),
    *("inspect: found", "locks: found", "state: found", "create: 0", "create: 1", "cas_acquire: 0", "cas_acquire: 1"),
    *("cas_release: 0", "cas_release: 1", "bump_version: 1", "reaped", "poll_owned: found", "with the same fence"),
    *("rebase: 0", "rebase: 1", "set back", "deleted with tickets", "confirm_new: found"),
    *("try_acquire_owned: in", "try_acquire_owned: wait", "try_acquire_owned: gone", "try_acquire_owned: method"),
    *(
        "fast_acquire_all: all",
        "fast_acquire_all: some",
        "fast_acquire_all: none",
        "fast_release_all: 0",
        "fast_release_all: 1",
    ),
    *(
        "release_all: 0",
        "release_all: 1",
        "advance_register: 0",
        "advance_register: 1",
        "advance_register: 2",
        "read_registers: found",
        "registers reaped",
    ),
    *("swap_record of none: own", "swap_record of none: other", "read_record: found", "records reaped"),
    *("swap_record of one: own", "swap_record of one: other", "swap_record of one: none"),
}


def test_the_model_does_each_step_as_the_server_does(real: Real) -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        steps = Steps(real, seed)
        for _ in range(400):
            steps.step()
        seen += steps.seen

    assert set() == SEEN - set(seen), "every case must have been compared"


WRONG_MODELS = [
    mutants.GrantsAnyOwner,
    mutants.ConfirmsAnyGrant,
    mutants.VersionNotCurrent,
    mutants.CheckThenSet,
    mutants.IgnoresClockSetBack,
    mutants.NewRowsAreFree,
    mutants.FenceByClock,
    mutants.ReleasesBlindly,
    mutants.RepeatDrawsNewFence,
    mutants.OwnerWithTwoFences,
    mutants.AdvancesBlindly,
    mutants.ReleasesNotRemembered,
    mutants.RecordOverwritten,
    mutants.VersionKeptByRelease,
    mutants.NothingExpires,
    mutants.ReapsByNumber,
    mutants.AcquiresBlindly,
    mutants.AcquiresPastTheQueue,
    mutants.WakesOneDeadWaiter,
    mutants.WokenKeepsItsLease,
]


@pytest.mark.parametrize("tables_type", WRONG_MODELS)
def test_a_wrong_model_is_detected(real: Real, tables_type: type[Tables]) -> None:
    with pytest.raises(AssertionError, match=" at 1"):
        for seed in WRONG_SEEDS:
            steps = Steps(real, seed, type("WrongModel", (Modelled, tables_type), {}))
            for _ in range(400):
                steps.step()
