"""Numbers that never go down, as far as a cache keeps them: one item for each name, changed by its version only.

    holdfast:mark:<number>:<nonce>

The nonce says whose call has raised it: one that got no answer comes again, and finds that it has.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.backends.memcached.io import errors
from holdfast.backends.memcached.port import Errand
from holdfast.backends.memcached.protocol import meta
from holdfast.backends.memcached.protocol.clock_check import EARLY, SECONDS_MAX
from holdfast.backends.memcached.protocol.keys import home_of, mark_key_of
from holdfast.errors import NameConflict

if TYPE_CHECKING:
    from holdfast.backends.memcached.config import Node
    from holdfast.backends.memcached.port import Answer
    from holdfast.backends.memcached.protocol.meta import Reply

_MARK = b"holdfast:mark:"
_FOR_EVER = 0  # what memcached takes for that
_ROUNDS = 16  # when others raise it between our reading and writing; each time one of them has
_BATCH = 100  # items read at once


class _Mark(NamedTuple):
    number: int
    nonce: str


class Marks:
    """The marks of one client."""

    def __init__(
        self,
        url: str,
        prefix: str,
        nodes: tuple[Node, ...],
        ask: Callable[[Errand, float], Awaitable[Answer]],
        in_time: Callable[[Node, float], Awaitable[object]],
    ) -> None:
        """`in_time` returns when that server's clock is known to go."""
        self._url = url
        self._prefix = prefix
        self._nodes = nodes
        self._ask = ask
        self._in_time = in_time

    async def put(self, name: str, number: int, nonce: str, keep: float, deadline: float) -> bool:
        """Raise it; whether it was lower, or is that call's already."""
        key = mark_key_of(self._prefix, name)
        node = home_of(key, self._nodes)
        value = b"%b%d:%b" % (_MARK, number, nonce.encode())
        for _ in range(_ROUNDS):
            answer = await self._ask(Errand(node, (meta.read(key),)), deadline)
            item, seconds = answer.replies[0], _seconds(keep)
            if item.code == "EN":
                request = meta.add(key, seconds, value)
            else:
                there = _parse(item)
                if there is None:
                    raise NameConflict(lock=name, reason="another program keeps something under the key of its mark")
                if there.number >= number:
                    return there == (number, nonce)
                # What was promised of the number before holds for this one too.
                seconds = _FOR_EVER if seconds == _FOR_EVER or item.left < 0 else max(seconds, item.left)
                request = meta.replace(key, item.version, seconds, value)
            await self._in_time(node, deadline)
            answer = await self._ask(Errand(node, (request,), answer.life), deadline)
            if answer.replies and answer.replies[0].code == "HD":
                return True
        raise errors.no_answer(self._url, node, "the item changed at every look")

    async def get(self, names: Sequence[str], deadline: float) -> list[int]:
        """Each; 0 where there is none."""
        keys = {name: mark_key_of(self._prefix, name) for name in names}
        found: dict[str, int] = {}
        for node in self._nodes:
            here = [name for name in keys if home_of(keys[name], self._nodes) == node]
            for start in range(0, len(here), _BATCH):
                batch = here[start : start + _BATCH]
                answer = await self._ask(Errand(node, [meta.read(keys[name]) for name in batch]), deadline)
                for name, item in zip(batch, answer.replies, strict=True):
                    there = _parse(item)
                    found[name] = 0 if there is None else there.number
        return [found[name] for name in names]


def _parse(item: Reply) -> _Mark | None:
    """None: it is no mark, or nothing is there."""
    if not item.value.startswith(_MARK):
        return None
    try:
        number, nonce = item.value[len(_MARK) :].decode().split(":")
        return _Mark(int(number), nonce)
    except ValueError:
        return None


def _seconds(keep: float) -> int:
    """More than 30 days memcached takes for a date: then it is for ever, which is as long as a cache likes."""
    seconds = math.ceil(keep) + EARLY
    return seconds if seconds <= SECONDS_MAX else _FOR_EVER
