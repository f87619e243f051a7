"""For tests of whole processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.terminals import OnTerminal, TerminalStarter


@pytest.fixture
def on_terminal() -> Iterator[TerminalStarter]:
    started: list[OnTerminal] = []

    def start(command: list[str], environment: dict[str, str]) -> OnTerminal:
        started.append(OnTerminal(command, environment))
        return started[-1]

    yield start
    for one in started:
        one.close()
