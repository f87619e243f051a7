"""Hazard: a reply that resumes its task at once loses a cancellation, an error, a context variable or the task."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable

import pytest

from holdfast.backends.net.pipeline import DirectReply

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


class Waiter:
    """A task that awaits a reply."""

    def __init__(self, name: str = "") -> None:
        self.reply = DirectReply(loop=asyncio.get_running_loop())
        self.steps: list[object] = []
        self.name = name
        self.task = asyncio.create_task(self._wait())

    async def _wait(self) -> object:
        variable.set(self.name)
        try:
            result = await self.reply
        except BaseException as error:
            self.steps.append(type(error))
            raise
        self.steps.append((result, variable.get(), asyncio.current_task() is self.task))
        return result


async def test_a_reply_resumes_its_task_at_once_in_the_context_of_the_task() -> None:
    waiter, loop = Waiter("inside"), asyncio.get_running_loop()
    await asyncio.sleep(0)
    steps_after_resume: list[list[object]] = []

    def deliver() -> None:
        waiter.reply.resume(17)
        steps_after_resume.append(list(waiter.steps))

    loop.call_soon(deliver)

    assert await waiter.task == 17
    assert steps_after_resume == [[(17, "inside", True)]]
    assert variable.get() == "unset"


async def test_a_reply_before_the_task_awaits_it_is_the_result() -> None:
    waiter = Waiter()

    asyncio.get_running_loop().call_soon(waiter.reply.resume, 17)

    assert await waiter.task == 17
    assert len(waiter.steps) == 1


async def test_a_cancelled_task_ends_and_its_reply_is_done() -> None:
    waiter = Waiter()
    await asyncio.sleep(0)

    waiter.task.cancel()
    await asyncio.wait([waiter.task])

    assert waiter.task.cancelled()
    assert waiter.reply.cancelled()
    assert waiter.steps == [asyncio.CancelledError]


async def test_an_error_is_raised_in_the_task() -> None:
    waiter = Waiter()
    await asyncio.sleep(0)

    waiter.reply.set_exception(ConnectionError("broken"))

    with pytest.raises(ConnectionError, match="broken"):
        await waiter.task


async def test_a_reply_set_inside_of_a_task_is_delivered_by_the_loop() -> None:
    waiter = Waiter()
    await asyncio.sleep(0)

    waiter.reply.set_result(17)

    assert waiter.steps == []
    assert await waiter.task == 17


async def test_an_error_of_the_resumed_task_stays_in_the_task() -> None:
    loop, reply = asyncio.get_running_loop(), DirectReply(loop=asyncio.get_running_loop())
    problems: list[object] = []
    loop.set_exception_handler(lambda _, context: problems.append(context))

    async def fail() -> None:
        raise ValueError(await reply)

    task = asyncio.create_task(fail())
    await asyncio.sleep(0)
    loop.call_soon(reply.resume, 17)

    with pytest.raises(ValueError, match="17"):
        await task
    assert problems == []


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_a_resumed_task_that_ends_the_program_ends_the_loop_and_raises_nothing_to_the_protocol(
    error: type[BaseException],
) -> None:
    loop = asyncio.new_event_loop()
    reply, steps = DirectReply(loop=loop), []

    async def end() -> None:
        raise error(await reply)

    def deliver() -> None:
        reply.resume(17)
        steps.append("delivered")

    task = loop.create_task(end())
    loop.call_soon(deliver)
    with pytest.raises(error):
        loop.run_forever()

    assert steps == ["delivered"]
    assert isinstance(task.exception(), error)
    loop.close()


@pytest.mark.parametrize("how", ["result", "resume"])
async def test_other_callbacks_are_called_once(how: str) -> None:
    reply = DirectReply(loop=asyncio.get_running_loop())
    called: list[str] = []
    record: Callable[[str], Callable[[object], None]] = lambda name: lambda _: called.append(name)  # noqa: E731
    first = record("first")
    reply.add_done_callback(record("plain"))
    reply.add_done_callback(first, context=contextvars.copy_context())
    reply.add_done_callback(record("second"), context=contextvars.copy_context())

    assert reply.remove_done_callback(first) == 1
    asyncio.get_running_loop().call_soon(reply.set_result if how == "result" else reply.resume, 17)
    await reply
    await asyncio.sleep(0)

    assert called == ["plain", "second"]
