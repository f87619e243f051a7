"""For tests of whole processes: clients, folders for servers, terminals. All end with the test."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.support.server_process import folder_in_memory
from tests.support.terminals import OnTerminal, TerminalStarter

OpenClient = Callable[..., holdfast.Client]


@pytest.fixture
def open_client() -> Iterator[OpenClient]:
    """Opens clients that are closed at the end of the test."""
    with contextlib.ExitStack() as stack:

        def open_one(url: str, **options: Any) -> holdfast.Client:
            return stack.enter_context(holdfast.Client(url, **options))

        yield open_one


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder for the servers of a module."""
    with folder_in_memory() as folder:
        yield folder


@pytest.fixture
def on_terminal() -> Iterator[TerminalStarter]:
    with contextlib.ExitStack() as stack:

        def start(command: list[str], environment: dict[str, str]) -> OnTerminal:
            return stack.enter_context(contextlib.closing(OnTerminal(command, environment)))

        yield start
