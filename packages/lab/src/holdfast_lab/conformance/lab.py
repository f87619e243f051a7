"""One suite for both shells: an actor is a thread with a Client, or a task with an AsyncClient.

    lease = await actor(lambda client: client.lock("a").acquire(timeout=0))

With threads the function runs on the actor's own thread; with asyncio its result is awaited in the actor's own task.
The two shells have the same names, so one function serves both.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import holdfast
from holdfast.core.tickets import Claim, LockInfo
from holdfast.primitives import Primitive
from holdfast.url import lacks_of, parse, scheme_of
from holdfast_lab.conformance.processes import now, poll_interval
from holdfast_lab.conformance.verbs import Verbs


class Actor(Protocol):
    """A thread or task that acquires locks. For re-entry it is always the same caller."""

    client: Any

    def __call__(self, work: Callable[..., Any]) -> Awaitable[Any]: ...

    async def body(self, lock: Callable[..., Any], work: Callable[..., Any]) -> Any:
        """Run `work(lease)` as the body of a `with` on the lock."""

    async def end(self) -> None: ...


class ThreadActor:
    def __init__(self, client: holdfast.Client) -> None:
        self.client = client
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._results: list[Any] = []  # keeps the leases that a test ignores, so that they are not dropped

    async def __call__(self, work: Callable[..., Any]) -> Any:
        result = await asyncio.get_running_loop().run_in_executor(self._thread, work, self.client)
        self._results.append(result)
        return result

    async def body(self, lock: Callable[..., Any], work: Callable[..., Any]) -> Any:
        def with_it(client: holdfast.Client) -> Any:
            with lock(client) as lease:
                return work(lease)

        return await self(with_it)

    async def end(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)


class TaskActor:
    def __init__(self, client: holdfast.AsyncClient) -> None:
        self.client = client
        self._results: list[Any] = []
        self._jobs: asyncio.Queue[tuple[Callable[[], Awaitable[Any]], asyncio.Future[Any]] | None] = asyncio.Queue()
        self.task = asyncio.create_task(self._work())

    async def __call__(self, work: Callable[..., Any]) -> Any:
        result = await self._do(lambda: _settled(work(self.client)))
        self._results.append(result)
        return result

    async def body(self, lock: Callable[..., Any], work: Callable[..., Any]) -> Any:
        async def with_it() -> Any:
            async with lock(self.client) as lease:
                return await _settled(work(lease))

        return await self._do(with_it)

    async def end(self) -> None:
        self._jobs.put_nowait(None)
        await self.task

    async def _do(self, job: Callable[[], Awaitable[Any]]) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._jobs.put_nowait((job, future))
        return await future

    async def _work(self) -> None:
        while (item := await self._jobs.get()) is not None:
            job, future = item
            try:
                result = await job()
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            del item, job, future


async def _settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


class Lab:
    """Makes actors on one fresh store, and cleans up after them."""

    def __init__(self, url: str, runtime: str, *, shows_waiters: bool = True) -> None:
        self.url = url
        self.runtime = runtime
        self._shows_waiters = shows_waiters
        self._actors: list[Actor] = []
        self._clients: list[Any] = []

    def actor(self, *, like: Actor | None = None, **options: Any) -> Actor:
        """Make an actor: with a new client with these `options`, like another process, or with the client of `like`."""
        if like is None:
            client: Any = (holdfast.Client if self.runtime == "threads" else holdfast.AsyncClient)(self.url, **options)
            self._clients.append(client)
        else:
            client = like.client
        actor: Actor = ThreadActor(client) if self.runtime == "threads" else TaskActor(client)
        self._actors.append(actor)
        return actor

    def lacks(self, primitive: Primitive) -> str | None:
        """The reason why this store lacks the primitive; None if it has it."""
        return _lack(self.url, primitive)

    def start(self, actor: Actor, work: Callable[..., Any]) -> asyncio.Task[Any]:
        """Let the actor begin the work. The task has its result."""

        async def go() -> Any:
            return await actor(work)

        return asyncio.create_task(go())

    async def state(self, name: str) -> LockInfo:
        observer = self.actor()
        info: LockInfo = await observer(lambda client: client.inspect(name))
        return info

    async def until_waiting(self, name: str, count: int) -> None:
        """Wait until that many callers wait, at the store or for another caller of their client.

        The test is marked with `counts_waiters`.
        """
        assert self._shows_waiters, "mark this test with counts_waiters: not every store shows waiters"
        observer = self.actor()

        async def are_waiting() -> bool:
            info: LockInfo = await observer(lambda client: client.inspect(name))
            return len(info.waiters) + sum(len(waiting_in(client, name)) for client in self._clients) == count

        await until(are_waiting, f"{count} waiters of {name!r}")

    async def aclose(self) -> None:
        for client in self._clients:
            closing = client.close
            await (closing() if self.runtime == "asyncio" else asyncio.to_thread(closing))
        for actor in self._actors:
            await actor.end()


class Store:
    """One fresh store, whose clients are the verbs of its backend on threads, without the engine."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._opened: list[Verbs] = []

    def open(self) -> Verbs:
        """Open a client, as if it were another process."""
        self._opened.append(Verbs(self.url))
        return self._opened[-1]

    def close(self) -> None:
        for verbs in self._opened:
            verbs.close()


def _lack(url: str, primitive: Primitive) -> str | None:
    address = parse(url)
    methods = lacks_of(scheme_of(address.scheme))
    return methods[address.options.get("method", next(iter(methods)))].get(primitive)


def waiting_in(client: holdfast.Client | holdfast.AsyncClient, name: str) -> list[Claim]:
    """The callers of this client that wait for each other, with local hand-over. The store does not show them."""
    local = client._engine.local
    queue = None if local is None else local.queues.get(name)
    return [] if queue is None else [*queue.waiting.values()]


async def until(condition: Callable[[], Awaitable[bool]], description: str, seconds: float = 30.0) -> None:
    """Poll until the condition holds; fail after `seconds`, which only a hang takes."""
    begun = now()
    try:
        async with asyncio.timeout(seconds):
            while not await condition():
                await asyncio.sleep(poll_interval(now() - begun))
    except TimeoutError:
        raise AssertionError(f"did not happen in {seconds:g} s: {description}") from None
