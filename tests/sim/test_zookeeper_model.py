"""Hazard: the model answers differently from ZooKeeper. Both get the same requests in the same order."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.backends.net.blocking import BackgroundThreads
from holdfast.backends.zookeeper.config import config_of
from holdfast.backends.zookeeper.io.ensemble import Ensemble
from holdfast.backends.zookeeper.port import (
    Answer,
    Check,
    Children,
    Create,
    Created,
    CreateParent,
    CreatePersistent,
    Delete,
    Ephemerals,
    Get,
    Node,
    Request,
    Set,
    Transaction,
)
from holdfast.runtimes import system
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.url import parse
from holdfast_lab.sim.servers.zookeeper.tree import Tree, Watch, sequence_suffix
from tests.support.processes import eventually
from tests.support.zookeeper import shared

STEPS = 400


class Real:
    """A session with a real server, and the watches that have fired."""

    def __init__(self) -> None:
        self.port = Ensemble(config_of(parse(shared.server().url)), BackgroundThreads(), ThreadRuntime())
        self.fired: list[str] = []
        self.port.on_events(lambda _, path: self.fired.append(path), lambda _: None)
        self.session = run_sync(self.port.open(30.0, deadline=system.now() + 10))

    def call(self, *requests: Request) -> list[Answer]:
        return run_sync(self.port.call(self.session, requests, deadline=system.now() + 10))


class Model:
    """The tree of one member, and its watches."""

    def __init__(self, session: int) -> None:
        self.tree = Tree()
        self.session = session
        self.watches: set[Watch] = set()
        self.fired: list[str] = []

    def call(self, request: Request) -> Answer:
        if isinstance(request, Children | Get | Ephemerals):
            answer = self.tree.read(request, self.session)
            if not isinstance(request, Ephemerals) and request.watch and isinstance(answer, list | tuple):
                self.watches.add((type(request), request.path))
            return answer
        refusal = self.tree.refusal(request)
        if refusal is not None:
            return refusal
        change = self.tree.plan(request, self.session, self.tree.zxid + 1, 0.0)
        for watch in self.tree.apply(change):
            if watch in self.watches:
                self.watches.discard(watch)
                self.fired.append(watch[1])
        return self.tree.done(request, change)


@pytest.fixture
def real() -> Iterator[Real]:
    made = Real()
    yield made
    run_sync(made.port.close())


@pytest.mark.parametrize("seed", range(3))
def test_the_model_and_a_real_server_return_the_same_answers_and_fire_the_same_watches(real: Real, seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311  (it has to be repeatable)
    root = f"/model-{uuid.uuid4().hex}"
    model = Model(real.session.id)
    known = [root, f"{root}/a", f"{root}/b", f"{root}/a/c"]
    for step in range(STEPS):
        request = _drawn(draw, known)
        expected = model.call(request)
        (answered,) = real.call(request)

        assert _comparable(answered) == _comparable(expected), f"step {step}: {request}"
        if isinstance(answered, Created):
            known.append(answered.path)
        # Watches fire in any order, and several may fire for one node.
        eventually(lambda: sorted(set(real.fired)) == sorted(set(model.fired)), within=10)

    assert model.fired


def _drawn(draw: random.Random, known: list[str]) -> Request:
    path = draw.choice(known)
    requests: list[Any] = [
        CreateParent(path, is_container=draw.random() < 0.5),
        Create(f"{draw.choice(known[:4])}/n-lock-", b"x"),
        Create(f"{draw.choice(known[:4])}/n-lock-", b"x"),
        CreatePersistent(f"{draw.choice(known[:4])}/lasting", str(draw.random()).encode()),
        Set(path, str(draw.random()).encode()),
        Set(path, str(draw.random()).encode(), version=draw.randrange(4)),
        Set(f"{known[0]}/lasting", b"y", version=draw.randrange(4)),
        Get(f"{known[0]}/lasting", watch=draw.random() < 0.5),
        Delete(f"{known[0]}/lasting", version=draw.randrange(-1, 3)),
        _transaction(draw, known),
        _transaction(draw, known),
        Children(path, watch=draw.random() < 0.5),
        Get(path, watch=draw.random() < 0.5),
        Ephemerals(known[0]),
    ]
    if path not in known[:4]:  # other nodes may have children; the protocol never deletes such nodes
        requests += [Delete(path)] * 2
    picked: Request = draw.choice(requests)
    below_a_ticket = isinstance(picked, CreateParent) and "-lock-" in picked.path
    return Get(path) if below_a_ticket else picked


def _transaction(draw: random.Random, known: list[str]) -> Transaction:
    """A transaction of one to three random operations."""
    lasting = f"{known[0]}/lasting"
    kinds: list[Check | Set | Delete] = [
        Check(draw.choice(known), draw.randrange(3)),
        Check(lasting, draw.randrange(-1, 3)),
        Set(draw.choice(known), b"z", version=draw.randrange(-1, 4)),
        Set(lasting, b"z", version=draw.randrange(-1, 3)),
        Delete(lasting, version=draw.randrange(-1, 3)),
    ]
    return Transaction(tuple(draw.choice(kinds) for _ in range(draw.randrange(1, 4))))


def _comparable(answer: Answer) -> object:
    """The answer without transaction numbers and times, which differ between servers."""
    if isinstance(answer, Created):
        return answer.path
    if isinstance(answer, Node):
        return answer.data, answer.owner, answer.version
    return sorted(answer) if isinstance(answer, list) else answer


def test_sequence_numbers_are_formatted_like_those_of_zookeeper() -> None:
    assert [sequence_suffix(changes) for changes in (0, 17, 2**31 - 1, 2**31, 2**32 - 1)] == [
        "0000000000",
        "0000000017",
        "2147483647",
        "-2147483648",
        "-000000001",
    ]
