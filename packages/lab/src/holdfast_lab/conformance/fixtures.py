"""The hooks and fixtures of the suite: its backends, its clients and processes, and what each test leaves behind.

The tests of holdfast itself use some of them too.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import itertools
import re
import signal
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.runtimes.threads import flush_log
from holdfast_lab.conformance.cases import Case, case_of_url
from holdfast_lab.conformance.lab import Lab, Store
from holdfast_lab.conformance.processes import WORKER, WorkerPool

RUNTIMES = ("threads", "asyncio")
_SHARE = 4  # a variant of a backend runs one of this many tests


@pytest.hookimpl(tryfirst=True)  # the first parameter, so that tests with the same server are neighbours
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test on each backend and with each runtime, except on backends that lack a primitive that it needs."""
    if "case" not in metafunc.fixturenames:
        return
    others = {name for mark in metafunc.definition.iter_markers("not_on") for name in mark.args}
    needed = {primitive for mark in metafunc.definition.iter_markers("needs") for primitive in mark.args}
    counts_waiters = metafunc.definition.get_closest_marker("counts_waiters") is not None
    cases = [
        case
        for case in _cases_of(metafunc)
        if case.name not in others and not needed & case.lacks.keys() and (case.shows_waiters or not counts_waiters)
    ]
    if "lab" not in metafunc.fixturenames:
        cases = [case for case in cases if _runtimes(case, metafunc)]
        metafunc.parametrize("case", cases, ids=lambda case: case.name)
        return
    pairs = [(case, runtime) for case in cases for runtime in _runtimes(case, metafunc)]
    metafunc.parametrize(
        ("case", "lab"), pairs, indirect=["lab"], ids=[f"{runtime}-{case.name}" for case, runtime in pairs]
    )


def _runtimes(case: Case, metafunc: pytest.Metafunc) -> Sequence[str]:
    """The runtimes that this test uses on this backend; none if it is left out."""
    on_every_method = metafunc.definition.get_closest_marker("on_every_method") is not None
    with_both = not case.is_variant and (on_every_method or not case.one_runtime)
    if with_both or metafunc.config.getoption("--all-methods"):
        return RUNTIMES
    number = zlib.crc32(f"{metafunc.definition.name} {case.name}".encode())
    is_chosen = not case.is_variant or on_every_method or number // len(RUNTIMES) % _SHARE == 0
    return (RUNTIMES[number % len(RUNTIMES)],) if is_chosen else ()


def _cases_of(metafunc: pytest.Metafunc) -> Sequence[Case]:
    config = metafunc.config
    url, mark = config.getoption("--holdfast-url"), metafunc.definition.get_closest_marker("cases")
    if url:
        return [case_of_url(url)]
    if mark is not None:
        return cast("Sequence[Case]", mark.args[0])
    cases: Sequence[Case] | None = config.hook.pytest_holdfast_cases(config=config)
    if cases is None:
        raise pytest.Collector.CollectError("the conformance suite of holdfast needs a store: --holdfast-url=URL")
    return cases


@pytest.fixture
def store_url(case: Case, tmp_path: Path) -> str:
    return case.fresh_url(tmp_path)


@pytest.fixture
def lab(case: Case, tmp_path: Path, request: pytest.FixtureRequest) -> Lab:
    return Lab(case.fresh_url(tmp_path), request.param, shows_waiters=case.shows_waiters)


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """For tests of a backend's verbs, without the engine."""
    store = Store(store_url)
    yield store
    store.close()


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    """Processes with a client each. Their commands are the same for every store."""
    with WorkerPool(WORKER) as pool:
        yield pool


# ── for every test ───────────────────────────────────────────────────────────────────────────────────────────────────


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


class _FlushedLog(pytest.LogCaptureFixture):  # type: ignore[misc]  # final, but there is no other way to get at it
    @property
    def handler(self) -> Any:
        flush_log(30)
        return super().handler


@pytest.fixture
def caplog(request: pytest.FixtureRequest) -> Iterator[pytest.LogCaptureFixture]:
    """Like pytest's own. holdfast calls log handlers on a separate thread, so each read waits for that thread first."""
    fixture = _FlushedLog(request.node, _ispytest=True)
    yield fixture
    fixture._finalize()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Like pytest's own, which is slower: it lists the folders of all earlier tests and replaces a link to the last."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    folder = tmp_path_factory.getbasetemp() / f"{name}-{next(_folder_numbers)}"
    folder.mkdir(mode=0o700)
    return folder


_folder_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _collect_dropped_leases() -> Iterator[None]:
    """A lease dropped in a test warns in that test, not in a later one.

    Only objects that the test created are collected. Older objects stay, because pytest keeps a report of each test:
    after a thousand tests, a collection of all objects would take longer than most tests do.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def _private_default_store(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test uses the lock file of the user, or gets the warning about it, inside or outside of a container."""
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    monkeypatch.delenv("HOLDFAST_REQUIRE_URL", raising=False)
    monkeypatch.setattr("holdfast.default_url._warned", True)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """A background job, or a job under nohup, ignores these signals, and all processes that a test starts would too."""
    usual: dict[signal.Signals, Any] = {
        signal.SIGHUP: signal.SIG_DFL,
        signal.SIGINT: signal.default_int_handler,
        signal.SIGQUIT: signal.SIG_DFL,
    }
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
