"""A Redis server without a world: keys, commands, scripts, PUBLISH and the number of subscribers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from holdfast.backends.redis.protocol.keys import slot_of
from holdfast_lab.sim.servers.redis import commands
from holdfast_lab.sim.servers.redis.commands import Refused, Reply, Words
from holdfast_lab.sim.servers.redis.keyspace import Keyspace
from holdfast_lab.sim.servers.redis.lua import interpreter

Word: TypeAlias = str | bytes | int
Publish = Callable[[bytes, bytes], int]  # channel, message -> number of receivers
CountSubscribers = Callable[[bytes], int]


class Machine:
    """One server, or a Cluster in which every slot has its own server."""

    def __init__(
        self,
        clock: Callable[[], int],
        publish: Publish,
        count_subscribers: CountSubscribers = lambda _channel: 0,
        *,
        is_cluster: bool = False,
        is_strict: bool = True,
    ) -> None:
        """`is_strict`: scripts may use only keys in KEYS; a real single server does not check this."""
        self.space = Keyspace(clock)
        self.is_cluster = is_cluster
        self._publish = publish
        self._count_subscribers = count_subscribers
        self._is_strict = is_strict

    def command(self, words: Sequence[Word]) -> Reply:
        """Run a plain command.

        Raises:
            Refused: an error reply of Redis.
        """
        return self._do([encoded(word) for word in words], None)

    def run(self, text: str, keys: Sequence[Word], arguments: Sequence[Word]) -> Reply:
        """Run a script, as EVAL does.

        Raises:
            Refused: it failed, perhaps half-way.
        """
        declared = [encoded(key) for key in keys]
        if self.is_cluster:
            _in_one_slot(declared, "CROSSSLOT Keys in request don't hash to the same slot")
        words = [encoded(argument) for argument in arguments]
        return interpreter().run(text, declared, words, lambda words: self._do(words, declared))

    def _do(self, words: Words, declared: Words | None) -> Reply:
        """Run one command of a client or, with declared keys, of a script."""
        name = words[0].upper()
        if name in (b"PUBLISH", b"SPUBLISH"):
            return self._publish_message(name, words[1:], declared)
        if name == b"PUBSUB":
            return self._subscriber_counts(words[1:])
        command = commands.find(name)
        command.check(name, words[1:])
        touched = words[1:][command.keys]
        if declared is not None:
            self._check_touched(touched, declared)
        elif self.is_cluster:
            _in_one_slot(touched, "CROSSSLOT Keys in request don't hash to the same slot")
        return command.run(self.space, words[1:])

    def _publish_message(self, name: bytes, words: Words, declared: Words | None) -> int:
        if len(words) != 2:  # noqa: PLR2004  (channel and message)
            raise Refused(f"ERR wrong number of arguments for '{name.decode().lower()}' command")
        channel, message = words
        if name == b"SPUBLISH" and declared and self.is_cluster:
            _in_one_slot([channel, *declared], _NOT_LOCAL)
        return self._publish(channel, message)

    def _subscriber_counts(self, words: Words) -> list[Reply]:
        if not words or words[0].upper() not in (b"NUMSUB", b"SHARDNUMSUB"):
            raise Refused("ERR the model of PUBSUB has NUMSUB and SHARDNUMSUB only")
        counts: list[Reply] = []
        for channel in words[1:]:
            counts += [channel, self._count_subscribers(channel)]
        return counts

    def _check_touched(self, touched: Words, declared: Words) -> None:
        for key in touched:
            if key not in declared:
                if self.is_cluster:
                    # On a real Cluster this fails only if the other slot is on another node.
                    _in_one_slot([key, *declared], _NOT_LOCAL)
                if self._is_strict:
                    raise Refused(f"ERR the script touches {key.decode(errors='replace')!r}, which it did not declare")


_NOT_LOCAL = "ERR Script attempted to access a non local key in a cluster node"


def _in_one_slot(keys: Words, problem: str) -> None:
    if len({slot_of(key.decode(errors="surrogateescape")) for key in keys}) > 1:
        raise Refused(problem)


def encoded(word: Word) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode()
