"""The index of the locks of `method=queue`: a sorted set of their keys, on a Cluster one for each slot.

It has every lock that holdfast holds or waits for, and some that were in use until a moment ago. A lock that only
another program holds is not in it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.backends.redis.lua import Script
from holdfast.backends.redis.port import Call, RedisPort, replies_of
from holdfast.backends.redis.protocol.keys import OtherKeys, index_keys
from holdfast.backends.redis.protocol.scanning import SCAN_COUNT, KeySource, Pacer, Work

if TYPE_CHECKING:
    from holdfast.core.ports import Runtime

SIZE = Script.of("queue/index_size", "return redis.call('ZCARD', KEYS[1])")


class IndexSource(KeySource[OtherKeys]):
    """The indexes of one deployment, for a Lister."""

    def __init__(self, port: RedisPort, runtime: Runtime, pacer: Pacer, prefix: str, *, per_slot: bool) -> None:
        self._port = port
        self._runtime = runtime
        self._pacer = pacer
        self._prefix = prefix
        self._per_slot = per_slot
        self._sizing = Work[Sequence[int]](lambda sizes: len(sizes) // 8)  # most do not exist, which takes little time

    async def servers(self, *, deadline: float) -> Sequence[OtherKeys]:
        """The indexes that have members. On a Cluster no command lists them, so the size of each is read.

        Each request has the time until the deadline; all together may take longer.
        """
        io_timeout = deadline - self._runtime.now()
        indexes = index_keys(self._prefix, per_slot=self._per_slot)
        if len(indexes) == 1:
            return indexes
        used: list[OtherKeys] = []
        for start in range(0, len(indexes), SCAN_COUNT):
            batch = indexes[start : start + SCAN_COUNT]
            request = functools.partial(self._sizes, batch, io_timeout)
            sizes = await self._pacer.run(request, self._sizing)
            used += [index for index, size in zip(batch, sizes, strict=True) if size]
        return used

    async def key_count(self, server: OtherKeys, *, deadline: float) -> int:
        (size,) = await self._sizes([server], deadline - self._runtime.now())
        return size

    async def scan(
        self, server: OtherKeys, cursor: bytes, pattern: str, *, deadline: float
    ) -> tuple[bytes, Sequence[str]]:
        words = ("ZSCAN", server.lock, cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)
        following, members = await self._port.command(server, *words, deadline=deadline)
        return following, [member.decode(errors="replace") for member in members[::2]]

    async def _sizes(self, indexes: Sequence[OtherKeys], io_timeout: float) -> list[int]:
        calls = [Call(SIZE, index, ()) for index in indexes]
        return replies_of(await self._port.run_all(calls, deadline=self._runtime.now() + io_timeout))
