"""A scenario: servers, the URL of a client, and the faults that `holdfast verify --fault` requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal, NamedTuple

Fault = Callable[[], Iterator[None]]
"""A fault of the servers: a generator that yields once.

Its first part is the fault, and it ends when the fault has happened: a server is dead, or a slot has begun to move. So
the time to recover, which `verify` counts from there, includes the time that the servers need. Its second part repairs
the deployment (a killed server comes back as a replica) during the load. The next fault waits for the repair.
"""


class Deployment(NamedTuple):
    """Servers that run."""

    url: str
    faults: Mapping[str, Fault] = {}


class Scenario(NamedTuple):
    """One row of docs/failovers.md."""

    name: str
    text: str  # the servers and what happens to them
    deploy: Callable[[Path], AbstractContextManager[Deployment]]  # in this folder
    group: Literal["failover", "plain", "broken"] = "failover"
    options: tuple[str, ...] = ()  # more options of `holdfast verify`
    must_break: tuple[str, ...] = ()  # promises that a broken deployment or adapter has to break
    limits: tuple[str, ...] = ()  # promises that may break here, as the page of the store states
