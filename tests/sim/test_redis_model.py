"""The model of Redis replies differently from Redis: the same commands and scripts run on the model and on a real
server.

Time passes on both sides. Commands are compared with expiries that outlive the test or have passed by the next step.
The shipped scripts get the same time on both sides, from the real server's clock, and everything else has to be equal.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from holdfast.backends.redis.lua import Script
from holdfast.backends.redis.protocol import queue, registers, setnx
from holdfast.backends.redis.protocol.keys import QueueKeys, queue_keys, record_key, register_key
from holdfast.backends.redis.protocol.keys import keys_of as plain_keys
from holdfast_lab.sim.servers.redis.commands import COMMANDS, Refused
from holdfast_lab.sim.servers.redis.keyspace import SortedSet, Stream
from holdfast_lab.sim.servers.redis.machine import Machine
from tests.support.redis.binaries import main_binary
from tests.support.redis.resp import Connection, ServerError
from tests.support.redis.servers import Server
from tests.support.server_process import running

LONG, OVER = 1_000_000, 1  # milliseconds: the first ttl outlives the test, the second ends before the next step


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(Server(main_binary(), tmp_path_factory.mktemp("redis"))) as started:
        yield started


class Sides:
    """A real server and the model, with the same clock whenever something is compared."""

    def __init__(self, real: Connection) -> None:
        self.real = real
        self.real.call("FLUSHALL")
        self.now = 0
        self.synchronise()
        self.model = Machine(lambda: self.now, lambda _channel, _message: 0, is_strict=False)

    def synchronise(self) -> None:
        seconds, microseconds = self.real.call("TIME")
        self.now = int(seconds) * 1_000_000 + int(microseconds)

    def let_pass(self) -> None:
        """Wait until keys with the ttl OVER have expired by the server's clock, which may be set."""
        before = self.now
        self.synchronise()
        until = max(before, self.now) + 3_000
        while self.now < until:
            time.sleep(0.001)
            self.synchronise()

    def command(self, *words: str | int) -> tuple[Any, Any]:
        return self._on_real(*words), self._on_model(lambda: self.model.command(words))

    def script(self, text: str, keys: Sequence[str], arguments: Sequence[str | int]) -> tuple[Any, Any]:
        real = self._on_real("EVAL", text, len(keys), *keys, *arguments)
        return real, self._on_model(lambda: self.model.run(text, keys, arguments))

    def _on_real(self, *words: str | int) -> Any:
        try:
            return self.real.call(*words)
        except ServerError as error:
            return _without_script(str(error))

    def _on_model(self, step: Any) -> Any:
        try:
            return _plain(step())
        except Refused as refused:
            return str(refused)

    def dumps(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Every key with its value and its rounded ttl."""
        self.synchronise()
        return (
            {key: self._real_value(key) for key in sorted(self.real.call("KEYS", "*"))},
            {
                key.decode(): (_value(value), _rounded(None if expires is None else expires - self.now // 1000))
                for key, (value, expires) in self.model.space.dump().items()
            },
        )

    def _real_value(self, key: str) -> Any:
        read: dict[str, list[str | int]] = {
            "string": ["GET", key],
            "hash": ["HGETALL", key],
            "zset": ["ZRANGE", key, 0, -1, "WITHSCORES"],
            "list": ["LRANGE", key, 0, -1],
            "stream": ["XRANGE", key, "-", "+"],
        }
        kind = self.real.call("TYPE", key)
        value, ttl = self.real.call(*read[kind]), self.real.call("PTTL", key)
        return _pairs(value) if kind == "hash" else value, _rounded(None if ttl == -1 else ttl)


def _plain(reply: Any) -> Any:
    if isinstance(reply, list):
        return [_plain(item) for item in reply]
    return reply.decode() if isinstance(reply, bytes) else reply


def _value(value: Any) -> Any:
    if isinstance(value, SortedSet):
        return [word for score, member in value.order for word in (member.decode(), f"{score:.17g}")]
    if isinstance(value, Stream):
        return [[f"{number}-{rest}", _plain(fields)] for (number, rest), fields in value.entries]
    if isinstance(value, dict):
        return {field.decode(): text.decode() for field, text in value.items()}
    return _plain(value)


def _pairs(flat: list[str]) -> dict[str, str]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _rounded(milliseconds: int | None) -> int | None:
    """In units of LONG / 2, because the exact ttl differs between the sides."""
    return None if milliseconds is None else round(milliseconds / (LONG / 2))


def _without_script(message: str) -> str:
    """Remove the name of the script, which only the real server adds."""
    return message.partition(" script: ")[0]


@pytest.fixture
def sides(server: Server) -> Iterator[Sides]:
    with server.connect() as connection:
        yield Sides(connection)


# ── commands ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Words:
    """Random commands, sensible or not: wrong types and wrong numbers of words included."""

    KEYS = ("k1", "k2", "k3", "k4", "k5")
    MEMBERS = ("a", "b", "c", "d")
    SCORES = ("1", "2", "-3.5", "1700000000000000", "0.1", "inf", "(2", "-inf", "+inf", "x")
    NUMBERS = ("0", "1", "-1", "2", "-2", "7", "x")

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw

    def next(self, now_ms: int) -> list[str | int]:
        draw = self._draw
        name = draw.choice([name.decode() for name in COMMANDS if name not in (b"TIME", b"SCAN", b"ZSCAN")])
        if draw.random() < 0.02:
            return [name, *draw.choices(self.MEMBERS, k=draw.randrange(5))]
        key, member, number = draw.choice(self.KEYS), draw.choice(self.MEMBERS), draw.choice(self.NUMBERS)
        some = draw.choices(self.MEMBERS, k=1 + draw.randrange(2))
        match name:
            case "DEL" | "EXISTS":
                return [name, *draw.choices(self.KEYS, k=1 + draw.randrange(2))]
            case "PEXPIRE":
                return [name, key, draw.choice([str(LONG), str(LONG), "0", "-5", "x"])]
            case "PEXPIREAT":
                return [name, key, draw.choice([now_ms + LONG, now_ms + LONG, 5, -5])]
            case "SET":
                return [name, key, member, *self._set_options(now_ms)]
            case "SETNX" | "GETSET":
                return [name, key, draw.choice([member, "41"])]
            case "GETRANGE":
                return [name, key, number, draw.choice(self.NUMBERS)]
            case "HSET":
                return [name, key, *(word for field in some for word in (field, draw.choice(self.MEMBERS)))]
            case "HGET" | "HEXISTS" | "ZRANK" | "ZSCORE":
                return [name, key, member]
            case "HSETNX":
                return [name, key, member, draw.choice(self.MEMBERS)]
            case "LRANGE":
                return [name, key, number, draw.choice(self.NUMBERS)]
            case "LREM":
                return [name, key, draw.choice(["0", "1", "2", "x"]), member]
            case "HMGET" | "HDEL" | "ZREM" | "LPUSH" | "RPUSH":
                return [name, key, *some]
            case "ZADD":
                flags = draw.sample(["NX", "XX", "GT", "LT", "CH"], k=draw.choice([0, 0, 0, 1, 2]))
                return [name, key, *flags, *(word for member in some for word in (draw.choice(self.SCORES), member))]
            case "ZRANGE" | "ZREVRANGE":
                return [name, key, number, draw.choice(self.NUMBERS), *draw.choice([[], [], ["WITHSCORES"], ["x"]])]
            case "ZRANGEBYSCORE":
                more = draw.choice([[], ["WITHSCORES"], ["LIMIT", number, "1"], ["LIMIT", "1", "-1"], ["LIMIT", "1"]])
                return [name, key, *draw.choices(self.SCORES, k=2), *more]
            case "XADD":
                some_id = draw.choice(["1", "2-0", "2-1", "9-0", str(2**63 - 1), "0", "0-0", "x", "3-x"])
                more = draw.choice([[], ["MAXLEN", "1"], ["MAXLEN", "2"]])
                return [name, key, *more, some_id, *draw.choice([["nonce", member], ["nonce", member], ["nonce"]])]
            case "XREVRANGE":
                return [name, key, "+", "-", *draw.choice([[], ["COUNT", "1"], ["COUNT", "2"], ["COUNT"]])]
            case "ZREMRANGEBYSCORE" | "ZCOUNT":
                return [name, key, *draw.choices(self.SCORES, k=2)]
            case _:
                return [name, key]

    def _set_options(self, now_ms: int) -> list[str | int]:
        draw = self._draw
        times: list[list[str | int]] = [
            [],
            [],
            ["PX", LONG],
            ["PX", 0],
            ["PXAT", now_ms + LONG],
            ["PXAT", 5],
            ["KEEPTTL"],
        ]
        flags: list[list[str]] = [[], [], ["NX"], ["XX"], ["GET"], ["NX", "GET"], ["NX", "XX"], ["nope"]]
        return [*draw.choice(flags), *draw.choice(times)]


@pytest.mark.parametrize("seed", range(8))
def test_the_model_replies_to_each_command_like_the_server(sides: Sides, seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311  (it has to be repeatable)
    words = Words(draw)

    for number in range(600):
        sides.synchronise()
        command = words.next(sides.now // 1000)
        real, model = sides.command(*command)
        if command[0] == "PTTL" and isinstance(real, int) and real >= 0:
            real, model = _rounded(real), _rounded(model)
        if command[0] == "HGETALL" and isinstance(real, list):
            real, model = _pairs(real), _pairs(model)
        assert model == real, f"step {number}: {command}"
        if number % 20 == 0:
            real, model = sides.dumps()
            assert model == real, f"after step {number}"


def test_a_scan_returns_matching_keys(sides: Sides) -> None:
    for key in ("lock:a", "lock:b*", "lock:[c]", "other", "lock:", "lock:\\d"):
        sides.command("SET", key, "1")

    for pattern in ("*", "lock:*", "lock:?", "lock:b\\*", "lock:\\[c\\]", "lock:[ab]", "lock:[^a]", "lock:\\\\d"):
        (_, real), (_, model) = sides.command("SCAN", 0, "MATCH", pattern, "COUNT", 1000)
        assert sorted(model) == sorted(real), pattern


def test_a_key_exists_in_its_last_millisecond_and_not_after_it(sides: Sides) -> None:
    script_text = """local time = redis.call('TIME')
              return {math.floor((time[1] * 1000000 + time[2]) / 1000), redis.call('EXISTS', KEYS[1])}"""
    sides.synchronise()
    ends = sides.now // 1000 + 20
    sides.command("SET", "key", "1", "PXAT", ends)

    seen = [tuple(sides.real.call("EVAL", script_text, 1, "key"))]
    while seen[-1][1]:
        seen.append(tuple(sides.real.call("EVAL", script_text, 1, "key")))

    assert seen[-1][0] > ends, "the key expired before its time"
    for when in {when for when, _ in seen}:
        sides.now = when * 1000
        assert sides.model.space.is_expired(b"key") == (when > ends)


# ── scripts ──────────────────────────────────────────────────────────────────────────────────────────────────────────

SNIPPETS = [
    "return {1.9, -1.9, 'x', false, true, {1, nil, 3}, {{}}, 1e20, tostring(1700000000000000)}",
    "return redis.call('SET', 'k', 'v')",
    "return redis.call('SET', 'k', 'v').ok",
    "return {redis.call('GET', 'nothing'), redis.call('GET', 'nothing') == false}",
    "return",
    "return nil",
    "return {ok = 'fine'}",
    "return {err = 'MY mistake'}",
    "return redis.status_reply('fine')",
    "return redis.error_reply('MY mistake')",
    "return redis.error_reply('lonely')",
    "error({err = 'MY mistake'})",
    "error('boo')",
    "return {redis.call('HSET', 'h', 'a', 1, 'b', 2.5), redis.call('HGETALL', 'h'), redis.call('HKEYS', 'h')}",
    """redis.call('ZADD', 'z', 1700000000000.5, 'a', 0.1, 'b', 1e300, 'c', 1700000000000001, 'd')
       return redis.call('ZRANGE', 'z', 0, -1, 'WITHSCORES')""",
    """redis.call('SET', 'n', 1700000000000000) redis.call('SET', 'm', 0.1) redis.call('SET', 'o', 1e20)
       return {redis.call('GET', 'n'), redis.call('GET', 'm'), redis.call('GET', 'o')}""",
    "local reply = redis.pcall('HGET', 'n', 'x') return {type(reply), reply.err}",
    "local done, problem = pcall(redis.call, 'HGET', 'n', 'x') return {done, type(problem)}",
    "return redis.call('HGET', 'n', 'x')",
    "return redis.call('GET', true)",
    "return redis.call('GET', {})",
    "return redis.call('GET')",
    "return redis.call('PEXPIRE', 'n', 1.5)",
    "return redis.call('PEXPIRE', 'n', '1.5')",
    "return {#KEYS, #ARGV, ARGV[1], ARGV[3]}",
    "return string.format('%.0f', 1700000000000000 + 1)",
    "return {math.floor(1700000000123456 / 1000), '5' + 1, '10' * 2}",
    "return {tonumber('0x10'), tonumber(''), tonumber('1e3'), tonumber('a') == nil}",
    "return {string.match('x:abc', '[^:]*$'), string.match('x:abc', '^[^:]*'), string.sub('abcdef', 1, 3)}",
    "return redis.call('TIME')[1] + 0 > 1700000000",
    "return unpack({'a', 'b'})",
    "undeclared = 1",
    "return undeclared",
    "return redis.call('LPUSH', 'l', 1, 2, 3)",
    "this is not lua",
]


@pytest.mark.parametrize("text", SNIPPETS)
def test_replies_of_scripts_are_converted_like_on_the_server(sides: Sides, text: str) -> None:
    sides.command("SET", "n", "1")

    real, model = sides.script(text, [], ["one", "two"])

    if isinstance(real, str) and real.startswith("ERR ") and real != model:
        assert model.startswith("ERR "), "the words differ in details, such as the chunk's name"
    else:
        assert model == real
    assert sides.dumps()[0] == sides.dumps()[1]


SERVER_TIME, GIVEN_TIME = "redis.call('TIME')", "{ARGV[#ARGV - 1], ARGV[#ARGV]}"
NAMES = ("plain", "with{tag}", "odd}brace")
KINDS = ("x", "x", "x", "r", "3", "@a", "@a", "@b")
SIGNAL = "signal"


def with_fixed_time(script: Script, *, waiter_lease: int) -> str:
    """The shipped text with the time and the lifetimes of leases and signals as arguments instead of TIME."""
    constants, _, text = script.text.partition("\n")
    assert constants.startswith("local WAITER_LEASE, WOKEN_LEASE, POLL_INTERVAL, SILENT, KEEP = ")
    woken = poll_after = min(waiter_lease, LONG // 2)
    names, _, _ = constants.partition(" = ")
    constants = f"{names} = {waiter_lease}, {woken}, {poll_after}, {waiter_lease}, {4 * LONG}"
    text = text.replace("redis.call('PEXPIRE', signal, 1000)", f"redis.call('PEXPIRE', signal, {LONG})")
    return f"{constants}\n{text}".replace(SERVER_TIME, GIVEN_TIME)


ABOUT = "PUBLISH\nwake:client\nagent\ninfo"


def keys_of(name: str) -> QueueKeys:
    return queue_keys("", name, per_slot=False)


class Steps:
    """Random steps of several clients, through the scripts that ship."""

    def __init__(self, sides: Sides, seed: int) -> None:
        self._sides = sides
        self._draw = random.Random(seed)  # noqa: S311  (it has to be repeatable)
        self._tickets: list[tuple[str, str, str]] = []  # name, kind, nonce
        self._fences: list[str] = ["1"]
        self.outcomes: set[str] = set()

    def step(self) -> tuple[str, Any, Any]:
        draw = self._draw
        self._sides.let_pass()
        often = {"acquire": 4, "all": 2, "again": 3, "release": 4, "renew": 2, "break": 1, "inspect": 1, "foreign": 1}
        (verb,) = draw.choices([*often], weights=[*often.values()])
        if verb == "all":
            return self._try_acquire_all()
        if verb == "acquire" or not self._tickets:
            verb = "acquire"
            self._tickets.append((draw.choice(NAMES), draw.choice(KINDS), f"{len(self._tickets):032x}"))
        name, kind, nonce = self._tickets[-1] if verb == "acquire" else draw.choice(self._tickets[-12:])
        lease, ttl = draw.choice([LONG, LONG, OVER]), draw.choice([LONG, LONG, OVER])
        unanswered, signal = draw.choice("001"), draw.choice(["", "", SIGNAL])
        match verb:
            case "acquire" | "again":
                arguments = [nonce, kind, ttl, draw.choice("0111"), ABOUT]
                return self._run(queue._TRY_ACQUIRE, name, arguments, lease)
            case "release":
                return self._run(queue._RELEASE, name, [nonce, kind, unanswered, signal], lease)
            case "renew":
                return self._run(queue._RENEW, name, [nonce, kind, ttl], lease)
            case "break":
                return self._run(queue._BREAK, name, [draw.choice(self._fences[-4:]), signal], lease)
            case "inspect":
                return self._run(queue._INSPECT, name, [], lease)
            case _:
                return self._foreign(keys_of(name).lock)

    def _try_acquire_all(self) -> tuple[str, Any, Any]:
        """Several locks by one script: those that the other steps use too, or some that are mostly free."""
        now = divmod(self._sides.now, 1_000_000)
        names = self._draw.choice([NAMES, ("free", "or", "nearly")])
        arguments: list[Any] = []
        for name in names:
            self._tickets.append((name, self._draw.choice(["x", "x", "@a"]), f"{len(self._tickets):032x}"))
            _, kind, nonce = self._tickets[-1]
            arguments += [
                nonce,
                kind,
                self._draw.choice([LONG, OVER, OVER, OVER]),
                "0",
                ABOUT,
                *now,
            ]
        text = with_fixed_time(queue._TRY_ACQUIRE_ALL, waiter_lease=LONG)
        keys = [key for name in names for key in keys_of(name).names]
        real, model = self._sides.script(text, keys, arguments)
        self.outcomes.add("all" if len(real) == len(names) and isinstance(real[-1], int) else "not all")
        replied, modelled = ([_comparable(queue._TRY_ACQUIRE, reply) for reply in side] for side in (real, model))
        return f"try_acquire_all {arguments}", replied, modelled

    def _run(self, script: Script, name: str, arguments: list[Any], lease: int) -> tuple[str, Any, Any]:
        now = divmod(self._sides.now, 1_000_000)
        text = with_fixed_time(script, waiter_lease=lease)
        real, model = self._sides.script(text, keys_of(name).names, [*arguments, *now])
        if script is queue._TRY_ACQUIRE:
            self.outcomes.add(real[0] if isinstance(real, list) else "in")
            if isinstance(real, int):
                self._fences.append(str(real))
        return f"{script.name} {name} {arguments}", _comparable(script, real), _comparable(script, model)

    def _foreign(self, key: str) -> tuple[str, Any, Any]:
        """Another program, or another method of holdfast, acquires or releases the lock."""
        value = self._draw.choice(["foreign", "foreign", "holdfast:setnx:abc:1"])
        if self._draw.random() < 0.7:
            return "foreign DEL", *self._sides.command("DEL", key)
        return "foreign SET", *self._sides.command("SET", key, value, "NX", "PX", self._draw.choice([LONG, OVER]))


def _comparable(script: Script, reply: Any) -> Any:
    """Without the differences between the sides: remaining milliseconds, and the order of a hash's fields."""
    if not isinstance(reply, list):
        return reply
    if script is queue._INSPECT:
        now, value, remaining, sharers, shared, waiting, waiters = reply
        return now, value, _rounded(remaining), _pairs(sharers), shared, waiting, _pairs(waiters)
    return [*reply[:2], _rounded(reply[2]), *reply[3:]] if reply[0] == "wait" else reply


def test_a_sorted_set_is_scanned_like_on_the_server(sides: Sides) -> None:
    sides.command("ZADD", "z", 1, "a:x", 2, "a:[y", 3, "b:x")

    for pattern in ("a:*", "*", "a:\\[*", "nothing"):
        real, model = sides.command("ZSCAN", "z", 0, "MATCH", pattern, "COUNT", 200)
        assert model == real


@pytest.mark.parametrize("seed", range(8))
def test_the_shipped_scripts_do_the_same_on_both(sides: Sides, seed: int) -> None:
    steps = Steps(sides, seed)

    for number in range(150):
        description, real, model = steps.step()
        assert model == real, f"step {number}: {description}"
        if number % 10 == 0:
            sides.let_pass()
            real, model = sides.dumps()
            assert model == real, f"after step {number}: {description}"

    assert steps.outcomes >= {"in", "wait", "all", "not all"}


def test_the_scripts_of_registers_do_the_same_on_both(sides: Sides) -> None:
    draw = random.Random(9)  # noqa: S311  (it has to be repeatable)
    numbers = [1, 2, 9, 10, 1_700_000_000_000_000, 2**63 - 2, 2**63 - 1]
    raised = 0

    for number in range(200):
        register = register_key("", draw.choice(NAMES)).names
        arguments: list[Any] = [draw.choice("ab"), draw.choice(numbers), draw.choice([LONG, OVER])]
        for script in (registers.ADVANCE, registers.READ):
            sides.let_pass()  # so that a register with the ttl OVER expires before the next read
            real, model = sides.script(script.text, register, arguments)
            assert model == real, f"step {number}: {script.name} {register} {arguments}"
            raised += real == 1
        real, model = sides.dumps()
        assert model == real, f"after step {number}"

    assert 0 < raised < 200


def test_the_scripts_of_records_do_the_same_on_both(sides: Sides) -> None:
    draw = random.Random(9)  # noqa: S311  (it has to be repeatable)
    swapped = 0

    for number in range(300):
        record = record_key("", draw.choice(NAMES)).names
        arguments: list[Any] = [
            draw.choice(("", "a", "b")),
            draw.choice(("", "a", "b")),
            "é",
            draw.choice([LONG, OVER]),
        ]
        for script in (registers.SWAP_RECORD, registers.READ_RECORD):
            sides.let_pass()
            real, model = sides.script(script.text, record, arguments)
            assert model == real, f"step {number}: {script.name} {record} {arguments}"
            swapped += real == 1
        real, model = sides.dumps()
        assert model == real, f"after step {number}"

    assert 0 < swapped < 300


def test_the_plain_scripts_do_the_same_on_both(sides: Sides) -> None:
    draw = random.Random(5)  # noqa: S311  (it has to be repeatable)
    keys = plain_keys("", "plain").names

    for number in range(200):
        sides.let_pass()
        now, nonce, ttl = divmod(sides.now, 1_000_000), draw.choice("abc"), draw.choice([LONG, LONG, OVER])
        script = draw.choice(
            [setnx._TRY_ACQUIRE, setnx._TRY_ACQUIRE, setnx._TRY_ACQUIRE_ALL, setnx._RELEASE, setnx._RENEW, setnx._BREAK]
        )
        text = script.text.replace(SERVER_TIME, GIVEN_TIME)
        is_all = script is setnx._TRY_ACQUIRE_ALL
        touched = [*keys, *plain_keys("", "other").names] if is_all else keys
        second = draw.choice([0, 1]) if script is setnx._RELEASE else ttl
        arguments: list[Any] = [nonce, second, *now]
        real, model = sides.script(text, touched, 2 * arguments if is_all else arguments)
        for state in (*real, *model) if is_all else (real, model):
            if isinstance(state, list) and state[0] == "wait":
                state[1] = _rounded(state[1])
        assert model == real, f"step {number}: {script.name}"


# ── what the model is stricter about ─────────────────────────────────────────────────────────────────────────────────


def test_a_script_on_a_cluster_cannot_use_keys_of_another_slot() -> None:
    machine = Machine(lambda: 10**15, lambda _channel, _message: 0, is_cluster=True)

    assert machine.run("return redis.call('SET', KEYS[1], 1)", ["a{1}"], []) == b"OK"
    for text, keys in [
        ("return 1", ["a{1}", "a{2}"]),
        ("return redis.call('SET', 'a{2}', 1)", ["a{1}"]),
        ("return redis.call('SPUBLISH', 'a{2}', 1)", ["a{1}"]),
    ]:
        with pytest.raises(Refused, match=r"slot|non local"):
            machine.run(text, keys, [])


def test_a_script_uses_only_keys_that_it_declares() -> None:
    machine = Machine(lambda: 10**15, lambda _channel, _message: 0)

    with pytest.raises(Refused, match="'b', which it did not declare"):
        machine.run("return redis.call('GET', 'b')", ["a"], [])


def test_writes_of_a_failed_script_remain() -> None:
    machine = Machine(lambda: 10**15, lambda _channel, _message: 0)

    with pytest.raises(Refused):
        machine.run("redis.call('SET', KEYS[1], 1) error('boo')", ["a"], [])

    assert machine.command(["GET", "a"]) == b"1"
