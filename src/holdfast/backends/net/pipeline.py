"""Connections for asyncio, one for each server, shared by all tasks. Replies arrive in the order of the requests.

The reply to the request of a cancelled task is read and discarded. A connection on which a deadline has passed takes no
new requests; earlier ones may still get their replies.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from holdfast.backends.net.errors import no_answer, not_sent
from holdfast.backends.net.poller import is_readable
from holdfast.backends.net.pool import IDLE_CHECK
from holdfast.core.engine import IO_TIMEOUT
from holdfast.errors import HoldfastError
from holdfast.runtimes.aio import AsyncioRuntime
from holdfast.url_parts import Node

R = TypeVar("R")  # a reply
T = TypeVar("T")
P = TypeVar("P", bound="Pipeline[Any]")

NO_REPLY: Any = object()  # the data that has arrived contains no further reply


class Parser(Protocol):
    """Collects data, from which `Pipeline.next_reply` takes the replies."""

    def feed(self, data: bytes, /) -> object: ...


class LoopConnection:
    """A transport of the loop. A subclass is also an asyncio protocol, and sets `_transport` and `is_open`."""

    def __init__(self, url: str, node: Node, runtime: AsyncioRuntime) -> None:
        self._url, self._node, self._runtime = url, node, runtime
        self._loop = runtime.loop
        self._transport: asyncio.Transport
        self.is_open = False
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self.broken(f"the connection broke: {exc}" if exc else "the server closed the connection")
        if not self.ended.done():
            self.ended.set_result(None)

    def broken(self, problem: str) -> None:
        """Called when no more replies can arrive."""

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._transport.abort()

    def abandon(self) -> None:
        """In a forked child: connect the descriptor to /dev/null.

        It is not closed, because the transport closes it later, and its number must not be reused before that. The
        transport is not closed, because it would remove the descriptor from a selector that the parent uses too.
        """
        if self.is_open:
            self.is_open = False
            null = os.open(os.devnull, os.O_RDWR)
            with contextlib.suppress(OSError):
                os.dup2(null, self._transport.get_extra_info("socket").fileno(), inheritable=False)
            os.close(null)


class DirectReply(asyncio.Future[Any]):
    """The reply to the only request of a pipeline. `resume` continues the task that awaits it, in the same iteration.

    A future calls its callbacks in the next iteration of the loop, which costs as much as reading the reply. The loop
    must be calling the protocol at that time, so that no task is running.
    """

    _wakeup: Callable[[Any], object] | None = None
    _context: contextvars.Context

    def resume(self, reply: object) -> None:
        wakeup, self._wakeup = self._wakeup, None
        super().set_result(reply)
        if wakeup is not None:
            try:
                self._context.run(wakeup, self)
            except (SystemExit, KeyboardInterrupt) as error:
                # The task has raised it, to end the loop. uvloop treats an exception of a protocol as an error of the
                # connection, and would continue.
                self.get_loop().call_soon(_raise, error)

    def add_done_callback(self, fn: Callable[[Any], object], /, *, context: contextvars.Context | None = None) -> None:
        if self._wakeup is None and context is not None and not self.done():  # only a task passes a context
            self._wakeup, self._context = fn, context
        else:
            super().add_done_callback(fn, context=context)

    def remove_done_callback(self, fn: Callable[[Any], object], /) -> int:
        self._use_loop()
        return super().remove_done_callback(fn)

    def set_result(self, result: Any, /) -> None:
        self._use_loop()
        super().set_result(result)

    def set_exception(self, exception: type | BaseException, /) -> None:
        self._use_loop()
        super().set_exception(exception)

    def cancel(self, msg: Any | None = None) -> bool:
        self._use_loop()
        return super().cancel(msg)

    def _use_loop(self) -> None:
        """Let the loop call the callback, as for any future."""
        wakeup, self._wakeup = self._wakeup, None
        if wakeup is not None:
            super().add_done_callback(wakeup, context=self._context)


def _raise(error: BaseException) -> NoReturn:
    raise error


class Pipeline(LoopConnection, ABC, Generic[R]):
    """One connection that is shared by all tasks."""

    def __init__(self, url: str, node: Node, runtime: AsyncioRuntime, io_timeout: float, parser: Parser) -> None:
        super().__init__(url, node, runtime)
        self._parser = parser
        # Future, deadline, number of replies, and for more than one reply those that have arrived.
        self._pending: deque[tuple[asyncio.Future[Any], float, int, list[R] | None]] = deque()
        self._outbox: list[bytes] = []
        self._timer_at = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._io_timeout = io_timeout
        self._used_at = runtime.now()
        self.is_slow = False  # a deadline has passed

    @abstractmethod
    def next_reply(self) -> R:
        """The next reply in the data that was received; NO_REPLY if it is not complete. May call `close`."""

    def submit(self, request: bytes, deadline: float) -> asyncio.Future[R]:
        """Send one request. The future gets its reply."""
        future: asyncio.Future[R] = self._loop.create_future()
        self._push(request, (future, self._limited(deadline), 1, None))
        return future

    def submit_now(self, request: bytes, now: float, deadline: float) -> asyncio.Future[R] | None:
        """The same with as little code as possible. None if the pipeline may not be usable, or has other requests."""
        pending, until = self._pending, now + self._io_timeout
        if pending or not self.is_open or self.is_slow or now - self._used_at >= IDLE_CHECK or deadline <= now:
            return None
        self._used_at = now
        future: asyncio.Future[R] = DirectReply(loop=self._loop)
        if until < deadline:  # noqa: PLR1730  (min() takes longer)
            deadline = until
        pending.append((future, deadline, 1, None))
        if deadline < self._timer_at:
            self._arm_timer(deadline)
        self._transport.write(request)
        return future

    async def exchange_many(self, request: bytes, count: int, deadline: float) -> list[R]:
        """Send several packed requests and read `count` replies."""
        future: asyncio.Future[list[R]] = self._loop.create_future()
        self._push(request, (future, self._limited(deadline), count, []))
        return await future

    def _limited(self, deadline: float) -> float:
        """Limit a deadline to io_timeout if that is shorter than the default, which callers respect already."""
        return deadline if self._io_timeout >= IO_TIMEOUT else min(deadline, self._runtime.now() + self._io_timeout)

    @property
    def is_idle(self) -> bool:
        return not self._pending

    def is_usable(self, deadline: float) -> bool:
        """Whether it is open. The loop may not have processed the end of the connection yet, if it was blocked."""
        now = self._runtime.now()
        if deadline <= now:
            raise not_sent(self._url, self._node, "there was no time left to send the request")
        unused, self._used_at = now - self._used_at, now
        if not self.is_open or self.is_slow:
            return False
        if unused < IDLE_CHECK or self._pending:
            return True
        # There is no pending request, so readable means that the server has closed it.
        return not is_readable(self._transport.get_extra_info("socket"))

    def deliver(self, data: bytes) -> None:
        """Give the replies in these data to their tasks."""
        pending = self._pending
        try:
            self._parser.feed(data)
            while (reply := self.next_reply()) is not NO_REPLY:
                future, _, count, replies = pending[0]
                if replies is not None:
                    replies.append(reply)
                    if len(replies) < count and self.is_open:
                        continue
                pending.popleft()
                if not future.done():
                    future.set_result(reply if replies is None else replies)
        except Exception as error:  # not the protocol, or a reply without a request
            self.broken(f"its reply cannot be parsed: {error!r}")
            self.close()
        if not pending and self.is_slow:
            self.close()
        elif not self.is_open:
            self.broken("the connection was closed")

    def broken(self, problem: str) -> None:
        unsent, self._outbox = len(self._outbox), []
        sent = len(self._pending) - unsent
        for number, (future, *_) in enumerate(self._pending):
            if not future.done():
                error = no_answer if number < sent else not_sent
                future.set_exception(error(self._url, self._node, problem))
        self._pending.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_at = None, math.inf

    def close(self) -> None:
        super().close()
        self.broken("the client is closed")

    def _push(self, request: bytes, entry: tuple[asyncio.Future[Any], float, int, list[R] | None]) -> None:
        if not self.is_open:
            raise not_sent(self._url, self._node, "the connection was closed")
        pending = self._pending
        pending.append(entry)
        if entry[1] < self._timer_at:
            self._arm_timer(entry[1])
        # A single request is sent at once. If others are pending, requests of all tasks that are ready now are sent
        # together in one system call.
        if len(pending) == 1:
            self._transport.write(request)
            return
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(request)

    def _flush(self) -> None:
        if self._outbox:
            requests, self._outbox = self._outbox, []
            self._transport.write(b"".join(requests))

    def _arm_timer(self, deadline: float) -> None:
        """One timer for all requests. Re-arm it only if the new deadline is earlier."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_later(max(0.0, deadline - self._runtime.now()), self._expire)

    def _expire(self) -> None:
        now = self._runtime.now()
        self._timer, self._timer_at = None, math.inf
        for future, deadline, *_ in self._pending:
            if deadline <= now:
                self.is_slow = True
                if not future.done():
                    future.set_exception(no_answer(self._url, self._node, "no answer in time"))
        waiting = [deadline for future, deadline, *_ in self._pending if not future.done()]
        if waiting:
            self._arm_timer(min(waiting))
        elif self.is_slow:
            self.close()


class SharedPipelines(ABC, Generic[P]):
    """The pipelines of one client, opened on demand: one for each server, and those that a subclass adds."""

    def __init__(self, url: str, runtime: AsyncioRuntime, connect_timeout: float) -> None:
        self._url, self._runtime, self._connect_timeout = url, runtime, connect_timeout
        self._shared: dict[Node, P] = {}
        self._opening: dict[Node, asyncio.Task[P]] = {}
        self._all: set[P] = set()
        self._closed = False

    @abstractmethod
    async def open_pipeline(self, node: Node, timeout: float) -> P:
        """Open a pipeline, and add it to `_all` with `_add`, before anything is sent on it."""

    async def shared(self, node: Node, deadline: float) -> P:
        """The pipeline of this server.

        Raises:
            BackendUnavailable: not connected before the deadline, or the client is closed.
        """
        pipeline = self._shared.get(node)
        if pipeline is None or not pipeline.is_usable(deadline):
            return await self._open_shared(node, deadline)
        return pipeline

    async def close(self) -> None:
        self._closed = True
        for task in list(self._opening.values()):
            task.cancel()
        pipelines = list(self._all)
        for pipeline in pipelines:
            pipeline.close()
        ending: list[asyncio.Future[Any]] = [*self._opening.values(), *(pipeline.ended for pipeline in pipelines)]
        if ending:
            await asyncio.wait(ending)

    def abandon(self) -> None:
        self._closed = True
        for pipeline in self._all:
            pipeline.abandon()

    def _add(self, pipeline: P) -> None:
        self._all.add(pipeline)
        pipeline.ended.add_done_callback(lambda _: self._all.discard(pipeline))

    async def _open_shared(self, node: Node, deadline: float) -> P:
        """One task opens the connection for all that need it. The cancellation of a waiting task does not cancel it."""
        opening = self._opening.get(node)
        if opening is None:
            if self._closed:
                raise not_sent(self._url, node, "the client is closed")
            opening = self._runtime.loop.create_task(self.open_pipeline(node, self._connect_timeout))
            self._opening[node] = opening
            opening.add_done_callback(lambda task: self._opened(node, task))
        await asyncio.wait((opening,), timeout=max(0.0, deadline - self._runtime.now()))
        if not opening.done():
            raise not_sent(self._url, node, "not connected in time")
        if opening.cancelled():
            raise not_sent(self._url, node, "the client is closed")
        return opening.result()

    def _opened(self, node: Node, opening: asyncio.Task[P]) -> None:
        self._opening.pop(node, None)
        if not opening.cancelled() and opening.exception() is None:
            old = self._shared.get(node)
            self._shared[node] = opening.result()
            if old is not None and old.is_idle:
                old.close()


async def outcome_of(exchange: Awaitable[T]) -> T | HoldfastError:
    """The result of one of several exchanges, or its error, which must not stop the others."""
    try:
        return await exchange
    except HoldfastError as error:
        return error
