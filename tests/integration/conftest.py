"""For tests of whole processes."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.support.terminals import OnTerminal, TerminalStarter


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """A job in the background of a script ignores SIGINT, and its children do too; handlers are not inherited."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def on_terminal() -> Iterator[TerminalStarter]:
    started: list[OnTerminal] = []

    def start(command: list[str], environment: dict[str, str]) -> OnTerminal:
        started.append(OnTerminal(command, environment))
        return started[-1]

    yield start
    for one in started:
        one.close()
