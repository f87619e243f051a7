"""Registers: a number per name that only grows, as long as the cache keeps it. One item per name, changed by version.

    holdfast:mark:<number>:<nonce>

The nonce identifies the call that advanced the register. A call that got no answer is repeated and recognises its own
write by it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.backends.memcached.port import Answer, Batch
from holdfast.backends.memcached.protocol import meta
from holdfast.backends.memcached.protocol.clock_check import MARGIN, SECONDS_MAX
from holdfast.backends.memcached.protocol.keys import node_of, register_key_of
from holdfast.backends.net.errors import no_answer
from holdfast.errors import NameConflict

if TYPE_CHECKING:
    from holdfast.url_parts import Node

_REGISTER = b"holdfast:mark:"
_NEVER_EXPIRES = 0  # memcached's "no expiry"
_ATTEMPTS = 16  # for writes of other clients between our read and write; after each failure one of them has succeeded
_CHUNK = 100  # items read at once


class _Register(NamedTuple):
    number: int
    nonce: str


class RegistersInItems(ABC):
    """The part of the backend for registers."""

    url: str
    _prefix: str
    _nodes: tuple[Node, ...]

    @abstractmethod
    async def _request(self, batch: Batch, deadline: float) -> Answer:
        """Send requests to one server."""

    @abstractmethod
    async def _check_clock(self, node: Node, deadline: float) -> object:
        """Return when the clock of the server is confirmed."""

    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        key = register_key_of(self._prefix, name)
        node = node_of(key, self._nodes)
        value = b"%b%d:%b" % (_REGISTER, number, nonce.encode())
        for _ in range(_ATTEMPTS):
            answer = await self._request(Batch(node, (meta.read(key),)), deadline)
            item, seconds = answer.replies[0], _seconds(keep)
            if item.code == "EN":
                request = meta.add(key, seconds, value)
            else:
                current = _parse(item)
                if current is None:
                    raise NameConflict(lock=name, reason="another program uses the key of its register")
                if current.number >= number:
                    return current == (number, nonce)
                # The retention that was promised for the previous number holds for this one too.
                is_endless = seconds == _NEVER_EXPIRES or item.seconds_left < 0
                seconds = _NEVER_EXPIRES if is_endless else max(seconds, item.seconds_left)
                request = meta.replace(key, item.version, seconds, value)
            await self._check_clock(node, deadline)
            answer = await self._request(Batch(node, (request,), answer.run), deadline)
            if answer.replies and answer.replies[0].code == "HD":
                return True
        raise no_answer(self.url, node, "the item changed at every attempt")

    async def read_registers(self, names: Sequence[str], *, deadline: float) -> list[int]:
        keys = {name: register_key_of(self._prefix, name) for name in names}
        numbers: dict[str, int] = {}
        for node in self._nodes:
            on_node = [name for name in keys if node_of(keys[name], self._nodes) == node]
            for start in range(0, len(on_node), _CHUNK):
                chunk = on_node[start : start + _CHUNK]
                answer = await self._request(Batch(node, [meta.read(keys[name]) for name in chunk]), deadline)
                for name, item in zip(chunk, answer.replies, strict=True):
                    current = _parse(item)
                    numbers[name] = 0 if current is None else current.number
        return [numbers[name] for name in names]


def _parse(item: meta.Reply) -> _Register | None:
    """None: there is no item, or it is not a register."""
    if not item.value.startswith(_REGISTER):
        return None
    try:
        number, nonce = item.value[len(_REGISTER) :].decode().split(":")
        return _Register(int(number), nonce)
    except ValueError:
        return None


def _seconds(keep: float) -> int:
    """The expiry of the item. memcached cannot express more than 30 days; such an item never expires."""
    seconds = math.ceil(keep) + MARGIN
    return seconds if seconds <= SECONDS_MAX else _NEVER_EXPIRES
