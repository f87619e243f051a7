"""An EtcdPort whose requests pass through a simulated network, and whose watches can be lost.

A request that has no answer in half of its time is repeated, as the real port does at another member. A client receives
watch events on one connection. When it breaks, the server knows at once and the client some time later. Then the client
watches again from the same revisions, so that it gets all events, but late.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.backends.etcd.port import Answer, Watch
from holdfast.core.notifications import Wakeups
from holdfast.core.tickets import Notification
from holdfast.errors import BackendError, BackendUnavailable, OutcomeUnknown

if TYPE_CHECKING:
    from holdfast_lab.sim.network import Link
    from holdfast_lab.sim.runtime import SimRuntime
    from holdfast_lab.sim.servers.etcd.server import EtcdServer

T = TypeVar("T")

RECONNECT_TIMEOUT, RECONNECT_PAUSE = 1.0, 0.2  # seconds


class SimPort:
    """The port of one client."""

    def __init__(self, server: EtcdServer, link: Link, runtime: SimRuntime) -> None:
        self.link = link
        self._server = server
        self._runtime = runtime
        self.wakeups = Wakeups(runtime)
        self.wanted: dict[str, Sequence[Watch]] = {}  # by nonce
        self._active: dict[str, Sequence[Watch]] = {}
        self.connection = 0  # the number of the connection that receives events
        self._is_opening = False

    async def call(self, method: str, message: Mapping[str, Any], *, deadline: float, once: bool = False) -> Answer:
        now = self._runtime.now()
        if once:
            sent = now
            return Answer(await self._request(lambda: self._server.answer(method, message), deadline), sent)
        try:
            half = now + (deadline - now) / 2
            return Answer(await self._request(lambda: self._server.answer(method, message), half), now)
        except OutcomeUnknown:
            sent = self._runtime.now()
            try:
                answer = await self._request(lambda: self._server.answer(method, message), deadline)
            except BackendUnavailable as error:
                raise OutcomeUnknown(backend=error.backend, problem=error.problem) from error
            return Answer(answer, sent, repeated=True)

    def name_mutex(self, name: str, *, deadline: float) -> contextlib.AbstractAsyncContextManager[None]:
        return contextlib.nullcontext()

    async def _request(self, step: Callable[[], T], deadline: float) -> T:
        return await self.link.request_in_this_run(step, deadline)

    # ── watches ──────────────────────────────────────────────────────────────────────────────────────────────────

    def watch(self, nonce: str, watches: Sequence[Watch]) -> None:
        old = self.wanted.get(nonce)
        if old is not None and [watch._replace(revision=0) for watch in old] == [
            watch._replace(revision=0) for watch in watches
        ]:
            return
        self.wanted[nonce] = watches
        self._open()

    def unwatch(self, nonce: str) -> None:
        self.wanted.pop(nonce, None)
        self._active.pop(nonce, None)
        self._server.forget(self, nonce)

    def notify(self, connection: int, nonce: str) -> None:
        if connection == self.connection:
            self.wakeups.wake(Notification(nonce))

    def connection_lost(self, connection: int) -> None:
        """The client notices that the connection that receives events is lost."""
        if connection == self.connection:
            self._server.disconnect(self)
            self.connection += 1
            self._active.clear()
            self._open()

    def _open(self) -> None:
        if not self._is_opening:
            self._is_opening = True
            self._runtime.spawn(self._open_all, "listener")

    async def _open_all(self) -> None:
        try:
            while True:
                new = {nonce: its for nonce, its in self.wanted.items() if self._active.get(nonce) is not its}
                if not new:
                    return
                connection = self.connection
                try:
                    await self._request(
                        lambda to_open=new, on=connection: self._server.watch(self, on, to_open),  # type: ignore[misc]
                        self._runtime.now() + RECONNECT_TIMEOUT,
                    )
                except BackendError:
                    await self._runtime.sleep(RECONNECT_PAUSE)
                    continue
                if connection == self.connection:
                    self._active |= new
        finally:
            self._is_opening = False

    async def close(self) -> None:
        self._server.disconnect(self)

    def abandon(self) -> None:
        """The process has ended; the server sees its connections close."""
