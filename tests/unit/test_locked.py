"""The decorator: the lock of a call, calls when the lock is busy, and errors before the first call."""

from __future__ import annotations

import asyncio
import functools
import inspect
import pickle
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast


@pytest.fixture
def client() -> Iterator[holdfast.Client]:
    with holdfast.Client("memory://") as client:
        yield client


def held(client: holdfast.Client) -> list[str]:
    return [info.name for info in client.locks()]


def refused(pattern: str) -> Any:
    return pytest.raises(holdfast.ConfigurationError, match=pattern)


module_client = holdfast.Client("memory://pickled")


@module_client.locked("square:{number}")
def square(number: int) -> int:
    """Of a module, so that it can be pickled by its name."""
    return number * number


# ── the name ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Shop:
    def __init__(self, number: int) -> None:
        self.id = number


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fixed", "fixed"),
        ("{{fixed}}", "{fixed}"),
        ("{day}", "monday"),
        ("{shop.id}:{day!r}", "7:'monday'"),
        ("{order[id]}/{order[lines][0]}", "A1/first"),
        ("{order[_id]}", "key"),
        ("{count:03}", "002"),
        ("{more[1]}", "y"),
        ("{extra[tag]}", "t"),
    ],
)
def test_the_name_is_written_from_the_arguments_and_defaults(client: holdfast.Client, name: str, expected: str) -> None:
    @client.locked(name)
    def work(shop: Shop, order: dict[str, Any], day: str = "monday", *more: str, count: int = 2, **extra: str) -> Any:
        return held(client)

    order = {"id": "A1", "lines": ["first"], "_id": "key"}
    assert work(Shop(7), order, "monday", "x", "y", tag="t") == [expected]
    assert held(client) == []
    if "more" not in name and "extra" not in name:
        assert work(order=order, shop=Shop(7)) == [expected]


def test_a_value_that_looks_like_a_field_is_only_text(client: holdfast.Client) -> None:
    @client.locked("a:{text}")
    def work(text: str) -> list[str]:
        return held(client)

    assert work("{text.__class__}") == ["a:{text.__class__}"]


def test_a_function_may_give_the_name(client: holdfast.Client) -> None:
    def name_of(number: int, *, unit: str = "kg") -> str:
        return f"{number} {unit}"

    @client.locked(name_of=name_of)
    def work(number: int, *, unit: str = "kg") -> list[str]:
        return held(client)

    assert work(3) == ["3 kg"]
    assert work(3, unit="m") == ["3 m"]


def test_methods_can_be_decorated(client: holdfast.Client) -> None:
    class Report:
        id = 9

        @client.locked("report:{self.id}:{day}")
        def plain(self, day: str) -> list[str]:
            return held(client)

        @staticmethod
        @client.locked("static:{day}")
        def static(day: str) -> tuple[str, list[str]]:
            return day, held(client)

        @classmethod
        @client.locked("class:{cls.id}")
        def of_class(cls) -> list[str]:
            return held(client)

    assert Report().plain("monday") == ["report:9:monday"]
    assert Report.static("monday") == ("monday", ["static:monday"])
    assert Report.of_class() == ["class:9"]


def test_a_call_whose_name_is_invalid_is_refused(client: holdfast.Client) -> None:
    @client.locked("{item}")
    def work(item: object) -> None:
        pytest.fail("ran without a lock")

    @client.locked("{order[id]}")
    def other(order: Any) -> None:
        pytest.fail("ran without a lock")

    with refused("must not be empty"):
        work("")
    with refused("at most 512"):
        work("x" * 513)
    with refused("a Shop has no text of its own"):
        work(Shop(1))
    with refused(r"'order\[id\]' of the lock's name cannot be filled: KeyError"):
        other({})


def test_wrong_arguments_raise_the_usual_error(client: holdfast.Client) -> None:
    @client.locked("{day}")
    def work(day: str) -> None: ...

    with pytest.raises(TypeError, match=r"work\(\) missing a required argument: 'day'"):
        work()  # type: ignore[call-arg]


# ── busy ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("locked", [holdfast.locked, holdfast.Client("memory://").locked])
def test_a_decorator_without_a_call_is_refused_at_decoration(locked: Any) -> None:
    with pytest.raises(TypeError, match=r'write @client.locked\("name"\) above .*work\(\).*name_of='):

        @locked  # type: ignore[untyped-decorator]
        def work(day: str) -> None: ...

    with pytest.raises(TypeError, match=r'write @client.locked\("name"\) above'):
        holdfast.AsyncClient("memory://").locked(coroutine)  # type: ignore[call-overload]
    with refused("needs either the name or name_of="):
        locked()
    for once_per in (holdfast.once_per, holdfast.Client("memory://").once_per):
        with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'name'"):
            once_per(plain)  # type: ignore[call-overload]


def test_a_skipped_call_returns_the_given_value(client: holdfast.Client) -> None:
    @client.locked("a", busy="skip", skipped="later")
    def with_word() -> str:
        return "done"

    assert with_word() == "done"
    lease = client.lock("a").acquire()
    assert with_word() == "later"
    assert lease is not None
    lease.release()


def test_a_timeout_of_the_body_does_not_count_as_a_busy_lock(client: holdfast.Client) -> None:
    @client.locked("a", busy="skip")
    def work() -> None:
        with client.lock("b", timeout=0):
            pass

    lease = client.lock("b").acquire()
    with pytest.raises(holdfast.AcquireTimeout) as caught:
        work()

    assert caught.value.lock == "b"
    with pytest.raises(holdfast.AcquireTimeout):  # an error of name_of is raised too
        client.locked(name_of=lambda: str(client.lock("b", timeout=0).__enter__()), busy="skip")(plain)()
    assert lease is not None
    lease.release()


# ── re-entry, loss, the lease ────────────────────────────────────────────────────────────────────────────────────


def test_a_recursive_call_needs_a_reentrant_lock(client: holdfast.Client) -> None:
    @client.locked("a", reentrant=True)
    def again(depth: int) -> int:
        return depth if depth == 0 else 1 + again(depth - 1)

    @client.locked("a")
    def once(depth: int) -> None:
        once(depth)

    assert again(3) == 3
    with pytest.raises(holdfast.WouldDeadlock, match="reentrant=True"):
        once(1)
    assert held(client) == []


def test_an_error_of_an_inner_call_does_not_release_the_lock_of_the_outer_call(client: holdfast.Client) -> None:
    @client.locked("a", reentrant=True)
    def inner() -> None:
        raise KeyError("mine")

    @client.locked("a", reentrant=True, lease="lease")
    def outer(lease: holdfast.Lease) -> list[str]:
        with pytest.raises(KeyError):
            inner()
        lease.check()
        return held(client)

    assert outer() == ["a"]
    assert held(client) == []


def test_the_function_gets_the_lease_if_it_has_the_parameter(client: holdfast.Client) -> None:
    # Types cannot express that a keyword parameter is removed.
    locked: Any = client.locked("a", lease="mine", meta={"job": 1})

    @locked  # type: ignore[untyped-decorator]
    def work(day: str, *, mine: holdfast.Lease | None = None) -> holdfast.Lease:
        assert mine is not None
        mine.check()
        return mine

    lease = work("monday")

    assert (lease.name, lease.meta, lease.held) == ("a", {"job": 1}, False)
    assert [*inspect.signature(work).parameters] == ["day"]
    with pytest.raises(TypeError, match="multiple values"):
        work("monday", mine=lease)


def test_the_lease_may_be_the_first_parameter_or_the_one_after_self(client: holdfast.Client) -> None:
    @client.locked("a:{day}", lease="lease")
    def first(lease: holdfast.Lease, day: str, *more: str) -> tuple[Any, ...]:
        lease.check()
        return (lease.name, day, *more)

    @client.locked("a:{day}", lease="lease")
    def first_only(lease: holdfast.Lease, /, day: str) -> tuple[str, str]:
        return lease.name, day

    class Report:
        id = 9

        @client.locked("{self.id}:{day}", lease="lease")
        def make(self, lease: holdfast.Lease, day: str = "monday") -> tuple[str, str]:
            return lease.name, day

    assert first("monday", "x") == ("a:monday", "monday", "x")
    assert first(day="monday") == first_only(day="monday") == first_only("monday") == ("a:monday", "monday")
    assert Report().make() == Report().make(day="monday") == Report.make(Report()) == ("9:monday", "monday")
    by_name: Any = Report.make
    assert by_name(self=Report(), day="monday") == ("9:monday", "monday")
    assert [*inspect.signature(first).parameters] == ["day", "more"]
    assert [*inspect.signature(Report.make).parameters] == ["self", "day"]


def test_a_loss_is_raised_at_the_end_of_the_call(client: holdfast.Client) -> None:
    reported = threading.Event()

    @client.locked("a", lease="lease", ttl=3, max_hold=0.05, on_lost=lambda _: reported.set())
    def work(lease: holdfast.Lease) -> str:
        assert lease.wait_lost(30)
        return "too late"

    with pytest.raises(holdfast.LockLost, match="max_hold"):
        work()
    assert reported.wait(30)


def test_an_exception_of_the_body_is_raised_and_the_lock_is_released(client: holdfast.Client) -> None:
    @client.locked("a")
    def work() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        work()
    assert held(client) == []


def test_threads_take_turns(client: holdfast.Client) -> None:
    inside: list[int] = []
    most: list[int] = []

    @client.locked("turn:{shop.id}")
    def work(shop: Shop) -> None:
        inside.append(1)
        most.append(len(inside))
        inside.pop()

    threads = [threading.Thread(target=lambda: [work(Shop(1)) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (len(most), max(most)) == (200, 1)


# ── the decorated function ───────────────────────────────────────────────────────────────────────────────────────


def test_the_decorated_function_keeps_its_metadata_and_pickles() -> None:
    assert (square.__name__, square.__doc__) == ("square", "Of a module, so that it can be pickled by its name.")
    assert str(inspect.signature(square)) == "(number: 'int') -> 'int'"
    assert pickle.loads(pickle.dumps(square)) is square
    assert square(3) == 9


def plain() -> None: ...
def generator() -> Iterator[int]:
    yield 1


async def coroutine() -> None: ...
async def async_generator() -> AsyncIterator[int]:
    yield 1


class CallableObject:
    async def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("function", "pattern"),
    [
        (coroutine, r"coroutine\(\) is a coroutine function: use AsyncClient.locked"),
        (functools.partial(coroutine), "use AsyncClient.locked"),
        (CallableObject(), "use AsyncClient.locked"),
        (generator, "is a generator, .* on the lock of a Client"),
        (async_generator, "is an async generator, .* on the lock of an AsyncClient"),
        (staticmethod(plain), "put @staticmethod above"),
        (classmethod(plain), "put @classmethod above"),  # type: ignore[arg-type]
        (Shop, "for functions and methods"),
        ("monday", "for functions and methods"),
    ],
)
def test_functions_that_threads_cannot_decorate_are_refused(
    client: holdfast.Client, function: Any, pattern: str
) -> None:
    for locked in (client.locked, holdfast.locked):
        with refused(pattern):
            locked("a")(function)


@pytest.mark.parametrize(
    ("function", "pattern"),
    [
        (plain, r"plain\(\) is not a coroutine function: use Client.locked"),
        (generator, "is a generator, .* on the lock of a Client"),
        (async_generator, "is an async generator, .* on the lock of an AsyncClient"),
        (staticmethod(coroutine), "put @staticmethod above"),
    ],
)
def test_functions_that_asyncio_cannot_decorate_are_refused(function: Any, pattern: str) -> None:
    with refused(pattern):
        holdfast.AsyncClient("memory://").locked("a")(function)


@pytest.mark.parametrize("decorator", ["locked", "once_per", "once"])
def test_an_error_of_a_decorator_names_the_same_decorator_of_the_other_client(
    client: holdfast.Client, decorator: str
) -> None:
    def decorate(client: Any, function: Any) -> Any:
        return (
            client.once_per("1h", name="a")(function)
            if decorator == "once_per"
            else getattr(client, decorator)("a")(function)
        )

    with refused(f"use AsyncClient.{decorator} for it"):
        decorate(client, coroutine)
    with refused(f"use Client.{decorator} for it"):
        decorate(holdfast.AsyncClient("memory://"), plain)
    with refused(f"returned a coroutine: use AsyncClient.{decorator} on"):
        decorate(client, lambda: coroutine())()  # noqa: PLW0108 - a plain function
    with refused(f"{decorator} is for functions and methods"):
        decorate(client, "monday")


def test_a_function_that_returns_a_coroutine_is_refused_before_the_coroutine_runs(client: holdfast.Client) -> None:
    @client.locked("a")
    def work() -> Any:
        return coroutine()

    with refused("returned a coroutine: use AsyncClient.locked"):
        work()
    assert held(client) == []


def test_callable_objects_and_partials_can_be_decorated(client: holdfast.Client) -> None:
    def add(left: int, right: int) -> int:
        return left + right

    class Adder:
        def __call__(self, left: int) -> int:
            return left + 1

    assert client.locked("{right}")(functools.partial(add, 1))(2) == 3
    assert client.locked("{left}")(Adder())(2) == 3


def test_a_function_without_a_signature_can_have_a_fixed_name(client: holdfast.Client) -> None:
    assert client.locked("fixed")(max)(1, 2) == 2
    with refused(r"parameters of max\(\) cannot be known .*: use name_of="):
        client.locked("{value}")(max)


def test_the_default_client_is_made_at_the_first_call(tmp_path: Path) -> None:
    code = (
        "import holdfast, holdfast.default as module\n"
        "@holdfast.locked('report:{day}', busy='skip')\n"
        "def report(day):\n"
        "    return [info.name for info in holdfast.default_client().locks()]\n"
        "assert not module._clients.made\n"
        "assert report('monday') == ['report:monday']\n"
        "assert module._clients.made\n"
    )
    environment = {"HOLDFAST_URL": f"sqlite://{tmp_path}/locks.db"}

    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


# ── asyncio ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_asyncio_names_busy_lease_and_recursion() -> None:
    async with holdfast.AsyncClient("memory://") as client:

        class Report:
            id = 9

            @client.locked("report:{self.id}:{day}", lease="lease", busy="skip", skipped="later", reentrant=True)
            async def make(self, lease: holdfast.AsyncLease, day: str, depth: int = 1) -> str:
                assert lease.name == "report:9:monday"
                return await self.make(day, depth - 1) if depth else lease.name

        assert await Report().make("monday") == "report:9:monday"
        assert inspect.iscoroutinefunction(Report.make)

        async with client.lock("report:9:monday"):
            assert await asyncio.create_task(Report().make("monday")) == "later"
        assert await client.locks() == []


async def test_asyncio_passes_the_lease_by_position() -> None:
    async with holdfast.AsyncClient("memory://") as client:

        @client.locked("a:{day}", lease="lease")
        async def work(lease: holdfast.AsyncLease, day: str) -> tuple[str, str]:
            return lease.name, day

        assert await work("monday") == await work(day="monday") == ("a:monday", "monday")


async def test_asyncio_loss_cancels_the_body() -> None:
    async with holdfast.AsyncClient("memory://") as client:

        @client.locked("a", max_hold=0.05)
        async def work() -> None:
            await asyncio.Event().wait()

        with pytest.raises(holdfast.LockLost, match="max_hold"):
            await work()


async def test_asyncio_timeouts_and_deadlocks_of_the_body_are_raised() -> None:
    async with holdfast.AsyncClient("memory://") as client:

        @client.locked("a", busy="skip")
        async def work() -> None:
            raise holdfast.AcquireTimeout(lock="b", waited=0)

        @client.locked("b")
        async def once() -> None:
            await once()

        with pytest.raises(holdfast.AcquireTimeout) as caught:
            await work()
        assert caught.value.lock == "b"
        with pytest.raises(holdfast.WouldDeadlock):
            await once()


def test_what_a_store_lacks_is_refused_by_the_decorator_as_by_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "redis://127.0.0.1:1?method=setnx"  # no request is sent
    monkeypatch.setenv("HOLDFAST_URL", url)
    monkeypatch.setattr("holdfast.default._clients.made", {})
    for client in (holdfast.Client(url), holdfast.AsyncClient(url)):
        for decorator in (client.lock, client.locked):
            with pytest.raises(holdfast.Unsupported, match="owner"):
                decorator("a", owner="job")

    @holdfast.locked("a", owner="job")
    def work() -> None:
        """Never run."""

    with pytest.raises(holdfast.Unsupported, match="owner"):
        work()
