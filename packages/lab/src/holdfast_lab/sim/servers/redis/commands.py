"""The commands that the protocols, scripts and tests use, with the replies of Redis 7.

A command takes the keyspace and its words, and returns a RESP 2 value: int, bytes, None, a list of these, or a Status.
Error replies are raised as Refused. tests/sim/test_redis_model.py compares each command with a real server.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from holdfast_lab.sim.servers.redis.keyspace import TYPES, Hash, Keyspace, List, SortedSet, Stream, Value


class Status(bytes):
    """A reply such as +OK, which Lua sees as a table."""

    __slots__ = ()


class Refused(Exception):
    """An error reply; its first word is the code."""

    @property
    def code(self) -> str:
        return str(self).partition(" ")[0]


Reply: TypeAlias = "int | bytes | Sequence[Reply] | None"
Words: TypeAlias = Sequence[bytes]
V = TypeVar("V", bytes, Hash, SortedSet, List, Stream)

OK = Status(b"OK")
NIL_SCORE = "min or max is not a float"
_LONGEST = 2**63


class Command(NamedTuple):
    """The function of a command, and which of its words are keys."""

    run: Callable[[Keyspace, Words], Reply]
    least: int  # words after its name
    most: int | None
    keys: slice

    def check(self, name: bytes, words: Words) -> None:
        if len(words) < self.least or (self.most is not None and len(words) > self.most):
            raise Refused(f"ERR wrong number of arguments for '{name.decode().lower()}' command")


def find(name: bytes) -> Command:
    """The command with this name, in upper or lower case.

    Raises:
        Refused: the model has no such command.
    """
    command = COMMANDS.get(name) or COMMANDS.get(name.upper())
    if command is None:
        raise Refused(f"ERR unknown command '{name.decode(errors='replace')}', with args beginning with: ")
    return command


def execute(space: Keyspace, words: Words) -> Reply:
    """Run one command. The first word is its name."""
    command = find(words[0])
    command.check(words[0], words[1:])
    return command.run(space, words[1:])


# ── words and values ─────────────────────────────────────────────────────────────────────────────────────────────────


def _integer(word: bytes) -> int:
    if re.fullmatch(rb"-?(0|[1-9]\d*)", word) is None or not -_LONGEST <= (number := int(word)) < _LONGEST:
        raise Refused("ERR value is not an integer or out of range")
    return number


def _float(word: bytes, problem: str = "value is not a valid float") -> float:
    try:
        number = float(word)
    except ValueError:
        raise Refused(f"ERR {problem}") from None
    if math.isnan(number) or word != word.strip() or b"_" in word:
        raise Refused(f"ERR {problem}")
    return number


def score_text(score: float) -> bytes:
    """A score in the form of Redis 7."""
    return b"%.17g" % score


def _typed(space: Keyspace, key: bytes, kind: type[V]) -> V | None:
    value = space.get(key)
    if value is not None and not isinstance(value, kind):
        raise Refused("WRONGTYPE Operation against a key holding the wrong kind of value")
    return value


def _get_or_create(space: Keyspace, key: bytes, kind: type[V]) -> V:
    """The value, or a new empty one. A caller that leaves it empty deletes it again."""
    value = _typed(space, key, kind)
    if value is None:
        value = kind()
        space.put(key, value)
    return value


def _delete_if_empty(space: Keyspace, key: bytes, value: Value) -> None:
    if not value:
        space.delete(key)


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _delete(space: Keyspace, keys: Words) -> int:
    return sum(space.get(key) is not None and space.delete(key) for key in keys)


def _exists(space: Keyspace, keys: Words) -> int:
    return sum(space.get(key) is not None for key in keys)


def _type(space: Keyspace, words: Words) -> Status:
    value = space.get(words[0])
    return Status(b"none" if value is None else TYPES[type(value)])


def _pexpire(space: Keyspace, words: Words) -> int:
    return _expire(space, words, space.now)


def _pexpireat(space: Keyspace, words: Words) -> int:
    return _expire(space, words, 0)


def _expire(space: Keyspace, words: Words, since: int) -> int:
    key, number, *options = words
    if options:  # NX, XX, GT, LT are not used
        raise Refused(f"ERR Unsupported option {options[0].decode()}")
    when = since + _integer(number)
    if space.get(key) is None:
        return 0
    space.expire_at(key, when)
    return 1


def _pttl(space: Keyspace, words: Words) -> int:
    if space.get(words[0]) is None:
        return -2
    when = space.expiry(words[0])
    return -1 if when is None else max(0, when - space.now)


def _persist(space: Keyspace, words: Words) -> int:
    if space.get(words[0]) is None or space.expiry(words[0]) is None:
        return 0
    space.expire_at(words[0], None)
    return 1


def _scan(space: Keyspace, words: Words) -> list[Reply]:
    """All keys in one reply: the cursor is always 0."""
    options = {words[index].upper(): words[index + 1] for index in range(1, len(words) - 1, 2)}
    pattern = glob(options.get(b"MATCH", b"*"))
    return [b"0", [key for key in space.living() if pattern.fullmatch(key)]]


def glob(pattern: bytes) -> re.Pattern[bytes]:
    """The regular expression for a MATCH pattern: * ? [abc] [^a] [a-z], and backslash escapes."""
    parts = re.findall(rb"\\.|\[\^?(?:\\.|[^\]])*\]|.", pattern, re.DOTALL)
    signs = {b"*": b".*", b"?": b"."}
    out = [part if part[:1] == b"[" and len(part) > 1 else signs.get(part) or re.escape(part[-1:]) for part in parts]
    return re.compile(b"".join(out), re.DOTALL)


# ── strings ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _get(space: Keyspace, words: Words) -> bytes | None:
    return _typed(space, words[0], bytes)


def _set(space: Keyspace, words: Words) -> Reply:
    key, value, *rest = words
    options = {word.upper() for word in rest if word.upper() in _FLAGS}
    times = _set_times(rest)
    is_whole = len(options) + 2 * len(times) == len(rest)
    if not is_whole or {b"NX", b"XX"} <= options or len(times) + (b"KEEPTTL" in options) > 1:
        raise Refused("ERR syntax error")
    when = None
    for unit, word in times:
        number = _integer(word)
        if number <= 0:
            raise Refused("ERR invalid expire time in 'set' command")
        when = number if unit == b"PXAT" else space.now + number
    before = _typed(space, key, bytes) if b"GET" in options else space.get(key)
    if (b"NX" in options and before is not None) or (b"XX" in options and before is None):
        return _answer(options, before, done=False)
    space.put(key, value)
    if b"KEEPTTL" not in options:
        space.expire_at(key, when)
    return _answer(options, before, done=True)


_FLAGS = {b"NX", b"XX", b"GET", b"KEEPTTL"}


def _set_times(rest: Words) -> list[tuple[bytes, bytes]]:
    words = [word.upper() for word in rest]
    return [(word, rest[index + 1]) for index, word in enumerate(words[:-1]) if word in (b"PX", b"PXAT")]


def _answer(options: set[bytes], before: Value | None, *, done: bool) -> Reply:
    if b"GET" in options:
        return before if isinstance(before, bytes) else None
    return OK if done else None


def _setnx(space: Keyspace, words: Words) -> int:
    if space.get(words[0]) is not None:
        return 0
    space.put(words[0], words[1])
    return 1


def _getset(space: Keyspace, words: Words) -> bytes | None:
    before = _typed(space, words[0], bytes)
    space.put(words[0], words[1])
    space.expire_at(words[0], None)
    return before


def _getrange(space: Keyspace, words: Words) -> bytes:
    first, last = _integer(words[1]), _integer(words[2])
    value = _typed(space, words[0], bytes) or b""
    if first < 0 and last < 0 and first > last:
        return b""
    first = max(0, first + len(value) if first < 0 else first)
    last = max(0, last + len(value) if last < 0 else last)
    return value[first : last + 1] if value else b""


def _incr(space: Keyspace, words: Words) -> int:
    number = _integer(_typed(space, words[0], bytes) or b"0") + 1
    if number >= _LONGEST:
        raise Refused("ERR increment or decrement would overflow")
    space.put(words[0], b"%d" % number)
    return number


# ── hashes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _hset(space: Keyspace, words: Words) -> int:
    if len(words) % 2 == 0:
        raise Refused("ERR wrong number of arguments for 'hset' command")
    fields = _get_or_create(space, words[0], dict)
    before = len(fields)
    fields.update(zip(words[1::2], words[2::2], strict=True))
    return len(fields) - before


def _hsetnx(space: Keyspace, words: Words) -> int:
    fields = _get_or_create(space, words[0], dict)
    if words[1] in fields:
        return 0
    fields[words[1]] = words[2]
    return 1


def _hget(space: Keyspace, words: Words) -> bytes | None:
    return (_typed(space, words[0], dict) or {}).get(words[1])


def _hmget(space: Keyspace, words: Words) -> list[Reply]:
    fields = _typed(space, words[0], dict) or {}
    return [fields.get(field) for field in words[1:]]


def _hdel(space: Keyspace, words: Words) -> int:
    fields = _typed(space, words[0], dict)
    if fields is None:
        return 0
    gone = sum(fields.pop(field, None) is not None for field in words[1:])
    _delete_if_empty(space, words[0], fields)
    return gone


def _hgetall(space: Keyspace, words: Words) -> list[Reply]:
    return [word for pair in (_typed(space, words[0], dict) or {}).items() for word in pair]


def _hkeys(space: Keyspace, words: Words) -> list[Reply]:
    return list(_typed(space, words[0], dict) or {})


def _hlen(space: Keyspace, words: Words) -> int:
    return len(_typed(space, words[0], dict) or {})


def _hexists(space: Keyspace, words: Words) -> int:
    return int(words[1] in (_typed(space, words[0], dict) or {}))


# ── sorted sets ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _zset(space: Keyspace, key: bytes) -> SortedSet:
    """The sorted set for reading."""
    return _typed(space, key, SortedSet) or SortedSet()


def _zadd(space: Keyspace, words: Words) -> int:
    key, *rest = words
    options: set[bytes] = set()
    while rest and rest[0].upper() in (b"NX", b"XX", b"GT", b"LT", b"CH"):
        options.add(rest.pop(0).upper())
    if not rest or len(rest) % 2:
        raise Refused("ERR syntax error")
    if {b"NX", b"XX"} <= options:
        raise Refused("ERR XX and NX options at the same time are not compatible")
    if len(options & {b"NX", b"GT", b"LT"}) > 1:
        raise Refused("ERR GT, LT, and/or NX options at the same time are not compatible")
    scores = [_float(word) for word in rest[::2]]
    members = _get_or_create(space, key, SortedSet)
    added = changed = 0
    for member, score in zip(rest[1::2], scores, strict=True):
        before = members.scores.get(member)
        if not _may_put(options, before, score):
            continue
        added += before is None
        changed += before is None or before != score
        members.put(member, score)
    _delete_if_empty(space, key, members)
    return changed if b"CH" in options else added


def _may_put(options: set[bytes], before: float | None, score: float) -> bool:
    if before is None:
        return b"XX" not in options
    return not (b"NX" in options or (b"GT" in options and score <= before) or (b"LT" in options and score >= before))


def _zrem(space: Keyspace, words: Words) -> int:
    return _remove_members(space, words[0], words[1:])


def _remove_members(space: Keyspace, key: bytes, gone: Iterable[bytes]) -> int:
    members = _typed(space, key, SortedSet)
    if members is None:
        return 0
    count = sum(members.drop(member) for member in list(gone))
    _delete_if_empty(space, key, members)
    return count


def _zrange(space: Keyspace, words: Words) -> list[Reply]:
    return _by_rank(space, words, is_reversed=False)


def _zrevrange(space: Keyspace, words: Words) -> list[Reply]:
    return _by_rank(space, words, is_reversed=True)


def _by_rank(space: Keyspace, words: Words, *, is_reversed: bool) -> list[Reply]:
    key, first_word, last_word, *rest = words
    with_scores = [word.upper() for word in rest] == [b"WITHSCORES"]
    if rest and not with_scores:
        raise Refused("ERR syntax error")
    first, last = _integer(first_word), _integer(last_word)
    order = _zset(space, key).order
    first = max(0, first + len(order) if first < 0 else first)
    last = last + len(order) if last < 0 else last
    chosen = (order[::-1] if is_reversed else order)[first : max(0, last + 1)]
    return list(_listed(chosen, with_scores=with_scores))


def _listed(chosen: Iterable[tuple[float, bytes]], *, with_scores: bool) -> Iterator[bytes]:
    for score, member in chosen:
        yield member
        if with_scores:
            yield score_text(score)


def _between(space: Keyspace, key: bytes, low: bytes, high: bytes) -> list[tuple[float, bytes]]:
    least, least_open = _bound(low)
    most, most_open = _bound(high)
    return [
        (score, member)
        for score, member in _zset(space, key).order
        if (least < score or (least == score and not least_open))
        and (score < most or (score == most and not most_open))
    ]


def _bound(word: bytes) -> tuple[float, bool]:
    is_open = word.startswith(b"(")
    return _float(word[1:] if is_open else word, NIL_SCORE), is_open


def _zrangebyscore(space: Keyspace, words: Words) -> list[Reply]:
    key, low, high, *rest = words
    with_scores, first, count = False, 0, -1
    while rest:
        word = rest.pop(0).upper()
        if word == b"WITHSCORES":
            with_scores = True
        elif word == b"LIMIT" and len(rest) > 1:
            first, count = _integer(rest.pop(0)), _integer(rest.pop(0))
        else:
            raise Refused("ERR syntax error")
    chosen = _between(space, key, low, high)
    if first < 0:
        chosen = []
    chosen = chosen[first:] if count < 0 else chosen[first : first + count]
    return list(_listed(chosen, with_scores=with_scores))


def _zremrangebyscore(space: Keyspace, words: Words) -> int:
    key, low, high = words
    return _remove_members(space, key, [member for _, member in _between(space, key, low, high)])


def _zcount(space: Keyspace, words: Words) -> int:
    return len(_between(space, *words))


def _zcard(space: Keyspace, words: Words) -> int:
    return len(_zset(space, words[0]))


def _zrank(space: Keyspace, words: Words) -> int | None:
    return _zset(space, words[0]).rank(words[1])


def _zscore(space: Keyspace, words: Words) -> bytes | None:
    score = _zset(space, words[0]).scores.get(words[1])
    return None if score is None else score_text(score)


def _zscan(space: Keyspace, words: Words) -> list[Reply]:
    """All members in one reply: the cursor is always 0."""
    options = {words[index].upper(): words[index + 1] for index in range(2, len(words) - 1, 2)}
    pattern = glob(options.get(b"MATCH", b"*"))
    chosen = [(score, member) for score, member in _zset(space, words[0]).order if pattern.fullmatch(member)]
    return [b"0", list(_listed(chosen, with_scores=True))]


# ── streams ──────────────────────────────────────────────────────────────────────────────────────────────────────────


TOO_SMALL = "ERR The ID specified in XADD is equal or smaller than the target stream top item"
_NO_ID = "ERR Invalid stream ID specified as stream command argument"


def _xadd(space: Keyspace, words: Words) -> bytes:
    """With an id that is given, and with MAXLEN if anything."""
    key, *rest = words
    most = None
    if rest[0].upper() == b"MAXLEN":
        most = _integer(rest[1])
        if most <= 0:  # an empty stream stays: none of ours makes one
            raise Refused("ERR The MAXLEN argument must be >= 0.")
        rest = rest[2:]
    entry = _entry_id(rest[0]) if rest else (0, 0)
    fields = list(rest[1:])
    if not fields or len(fields) % 2:
        raise Refused("ERR wrong number of arguments for 'xadd' command")
    if entry == (0, 0):
        raise Refused("ERR The ID specified in XADD must be greater than 0-0")
    stream = _typed(space, key, Stream)
    if stream is not None and entry <= stream.last:
        raise Refused(TOO_SMALL)
    stream = _get_or_create(space, key, Stream)
    stream.entries.append((entry, fields))
    if most is not None:
        del stream.entries[:-most]
    return _id_text(entry)


def _xrevrange(space: Keyspace, words: Words) -> list[Reply]:
    """From + to -, and COUNT if anything."""
    key, end, start, *rest = words
    if (end, start) != (b"+", b"-"):
        raise Refused(_NO_ID)
    if rest and (len(rest) != 2 or rest[0].upper() != b"COUNT"):  # noqa: PLR2004  (COUNT and a number)
        raise Refused("ERR syntax error")
    stream = _typed(space, key, Stream) or Stream()
    newest = stream.entries[::-1]
    return [[_id_text(entry), fields] for entry, fields in (newest[: _integer(rest[1])] if rest else newest)]


def _entry_id(word: bytes) -> tuple[int, int]:
    if re.fullmatch(rb"\d+(-\d+)?", word) is None:
        raise Refused(_NO_ID)
    number, _, rest = word.partition(b"-")
    return int(number), int(rest or b"0")


def _id_text(entry: tuple[int, int]) -> bytes:
    return b"%d-%d" % entry


# ── lists, and the rest ──────────────────────────────────────────────────────────────────────────────────────────────


def _lpush(space: Keyspace, words: Words) -> int:
    entries = _get_or_create(space, words[0], list)
    entries[:0] = reversed(words[1:])
    return len(entries)


def _rpush(space: Keyspace, words: Words) -> int:
    entries = _get_or_create(space, words[0], list)
    entries.extend(words[1:])
    return len(entries)


def _lpop(space: Keyspace, words: Words) -> bytes | None:
    entries = _typed(space, words[0], list)
    if entries is None:
        return None
    first = entries.pop(0)
    _delete_if_empty(space, words[0], entries)
    return first


def _lrange(space: Keyspace, words: Words) -> list[Reply]:
    first, last = _integer(words[1]), _integer(words[2])
    entries = _typed(space, words[0], list) or []
    first = max(0, first + len(entries) if first < 0 else first)
    last = last + len(entries) if last < 0 else last
    return list(entries[first : max(0, last + 1)])


def _lrem(space: Keyspace, words: Words) -> int:
    """From the head: a negative number is not used."""
    most = _integer(words[1])
    if most < 0:
        raise Refused("ERR a negative count is not supported")
    entries = _typed(space, words[0], list)
    if entries is None:
        return 0
    matches = [index for index, entry in enumerate(entries) if entry == words[2]]
    chosen = matches[:most] if most else matches
    for index in reversed(chosen):
        del entries[index]
    _delete_if_empty(space, words[0], entries)
    return len(chosen)


def _llen(space: Keyspace, words: Words) -> int:
    return len(_typed(space, words[0], list) or [])


def _time(space: Keyspace, _: Words) -> list[Reply]:
    seconds, microseconds = divmod(space.clock(), 1_000_000)
    return [b"%d" % seconds, b"%d" % microseconds]


_NONE, _FIRST, _ALL = slice(0), slice(1), slice(None)

COMMANDS: dict[bytes, Command] = {
    b"DEL": Command(_delete, 1, None, _ALL),
    b"EXISTS": Command(_exists, 1, None, _ALL),
    b"TYPE": Command(_type, 1, 1, _FIRST),
    b"PEXPIRE": Command(_pexpire, 2, None, _FIRST),
    b"PEXPIREAT": Command(_pexpireat, 2, None, _FIRST),
    b"PTTL": Command(_pttl, 1, 1, _FIRST),
    b"PERSIST": Command(_persist, 1, 1, _FIRST),
    b"SCAN": Command(_scan, 1, None, _NONE),
    b"GET": Command(_get, 1, 1, _FIRST),
    b"SET": Command(_set, 2, None, _FIRST),
    b"SETNX": Command(_setnx, 2, 2, _FIRST),
    b"GETSET": Command(_getset, 2, 2, _FIRST),
    b"GETRANGE": Command(_getrange, 3, 3, _FIRST),
    b"INCR": Command(_incr, 1, 1, _FIRST),
    b"HSET": Command(_hset, 3, None, _FIRST),
    b"HSETNX": Command(_hsetnx, 3, 3, _FIRST),
    b"HGET": Command(_hget, 2, 2, _FIRST),
    b"HMGET": Command(_hmget, 2, None, _FIRST),
    b"HDEL": Command(_hdel, 2, None, _FIRST),
    b"HGETALL": Command(_hgetall, 1, 1, _FIRST),
    b"HKEYS": Command(_hkeys, 1, 1, _FIRST),
    b"HLEN": Command(_hlen, 1, 1, _FIRST),
    b"HEXISTS": Command(_hexists, 2, 2, _FIRST),
    b"ZADD": Command(_zadd, 3, None, _FIRST),
    b"ZREM": Command(_zrem, 2, None, _FIRST),
    b"ZRANGE": Command(_zrange, 3, None, _FIRST),
    b"ZREVRANGE": Command(_zrevrange, 3, None, _FIRST),
    b"ZRANGEBYSCORE": Command(_zrangebyscore, 3, None, _FIRST),
    b"ZREMRANGEBYSCORE": Command(_zremrangebyscore, 3, 3, _FIRST),
    b"ZCARD": Command(_zcard, 1, 1, _FIRST),
    b"ZCOUNT": Command(_zcount, 3, 3, _FIRST),
    b"ZRANK": Command(_zrank, 2, 2, _FIRST),
    b"ZSCORE": Command(_zscore, 2, 2, _FIRST),
    b"ZSCAN": Command(_zscan, 2, None, _FIRST),
    b"XADD": Command(_xadd, 4, None, _FIRST),
    b"XREVRANGE": Command(_xrevrange, 3, None, _FIRST),
    b"LPUSH": Command(_lpush, 2, None, _FIRST),
    b"RPUSH": Command(_rpush, 2, None, _FIRST),
    b"LPOP": Command(_lpop, 1, 1, _FIRST),
    b"LRANGE": Command(_lrange, 3, 3, _FIRST),
    b"LREM": Command(_lrem, 3, 3, _FIRST),
    b"LLEN": Command(_llen, 1, 1, _FIRST),
    b"TIME": Command(_time, 0, 0, _NONE),
}
