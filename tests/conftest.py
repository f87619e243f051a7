"""For all tests: coroutine tests run on a fresh event loop, and no test leaves threads or leases behind unseen."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.runtimes.threads import flush_log
from tests.support.processes import WORKER, WorkerPool
from tests.support.server_process import join_run


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--holdfast-url",
        metavar="URL",
        help="run the conformance suite on this store only, which may be that of a plugin; {fresh} in the URL is "
        "replaced in each test, and without it the path is extended",
    )
    parser.addoption(
        "--all-runtimes",
        action="store_true",
        help="run each conformance test of every method of a backend with both threads and asyncio",
    )


class _FlushedLog(pytest.LogCaptureFixture):  # type: ignore[misc]  # final, but there is no other way to get at it
    @property
    def handler(self) -> Any:
        flush_log(30)
        return super().handler


@pytest.fixture
def caplog(request: pytest.FixtureRequest) -> Iterator[pytest.LogCaptureFixture]:
    """As pytest's own. Log handlers are called by a thread of its own, so it waits for that before it is read."""
    fixture = _FlushedLog(request.node, _ispytest=True)
    yield fixture
    fixture._finalize()


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    """Processes with a client each. Their commands are the same for every store."""
    with WorkerPool(WORKER) as pool:
        yield pool


def pytest_configure(config: pytest.Config) -> None:
    """The workers of pytest-xdist share servers. Each has its temporary folder in that of the run."""
    gc.set_threshold(10_000)  # the default takes up to a quarter of the time of a simulated world
    if hasattr(config, "workerinput"):
        join_run(Path(config.getoption("basetemp")).parent)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run `async def` tests with asyncio.run; fixtures with an `aclose` are closed on the same loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            for argument in arguments.values():
                if hasattr(argument, "aclose"):
                    stack.push_async_callback(argument.aclose)
            await pyfuncitem.obj(**arguments)

    asyncio.run(run())
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start long tests first, so that none runs alone at the end: slow tests, then tests that compute.

    A test that computes all the time takes many times as long on a busy machine, so it has a longer limit.
    """
    for item in items:
        if "tests/sim/" in item.nodeid and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))
    items.sort(key=lambda item: (item.get_closest_marker("slow") is None, "tests/sim/" not in item.nodeid))


@pytest.fixture(autouse=True)
def _collect_dropped_leases() -> Iterator[None]:
    """A lease dropped in a test warns in that test, not in a later one.

    Only objects that the test created are collected. Older objects stay (pytest keeps a report of each test),
    and after a thousand tests to go through that again would take longer than most tests do.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def _private_default_store(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test touches the user's own lock file, nor is warned of it, whether the tests run in a container or not."""
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    monkeypatch.delenv("HOLDFAST_REQUIRE_URL", raising=False)
    monkeypatch.setattr("holdfast.default_url._warned", True)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """A job in the background of a script, or under nohup, ignores signals, and so would all that the tests start."""
    usual: dict[signal.Signals, Any] = {
        signal.SIGHUP: signal.SIG_DFL,
        signal.SIGINT: signal.default_int_handler,
        signal.SIGQUIT: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
