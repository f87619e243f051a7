"""Hazard: a model that differs from the store. The same steps run on the simulated file and on a real one.

Time passes on both sides, but only one result depends on it: a ticket either outlives the test or has expired by the
next step. (Registers wait for the disk, so more time passes on the real side.) Fences differ, because they come from
the clock; that they exist, and grow, does not differ.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import pytest

from holdfast.backends.sqlite.io.blocking import open_backend
from holdfast.core.ports import Backend
from holdfast.core.tickets import Claim, Granted, Live, LockInfo, Waiting
from holdfast.errors import LimitConflict
from holdfast.runtimes.threads import ThreadRuntime, run_sync
from holdfast.url import parse
from holdfast_lab.sim.choices import Choices
from holdfast_lab.sim.mutants.base import replaced
from holdfast_lab.sim.run import Plan
from holdfast_lab.sim.scenarios import SmallWorld

T = TypeVar("T")

CLIENTS = ("a", "b", "c")
NAMES = ("one", "two")
SHAPES = ((1, True), (None, False), (2, False))  # limit, exclusive
LONG, OVER = 1000.0, 1e-6


class Side(Protocol):
    """The real file or the model."""

    backends: dict[str, Backend]

    def do(self, client: str, step: Callable[[Backend, float], Coroutine[Any, Any, T]]) -> T: ...

    def open(self, client: str) -> None: ...


class Real:
    def __init__(self, folder: Path) -> None:
        self._url = f"sqlite://{folder}/locks.db"
        self._runtime = ThreadRuntime()
        self.backends: dict[str, Backend] = {}

    def open(self, client: str) -> None:
        self.backends[client] = open_backend(parse(self._url), self._runtime)

    def do(self, client: str, step: Callable[[Backend, float], Coroutine[Any, Any, T]]) -> T:
        return run_sync(step(self.backends[client], self._runtime.now() + 5.0))


class Simulated:
    def __init__(self) -> None:
        self._world = SmallWorld(Plan(backend="sqlite"), Choices(decisions=()))
        self.new_nonce = self._world.recorder.new_nonce
        self.backends: dict[str, Backend] = {}

    def open(self, client: str) -> None:
        self.backends[client] = self._world.add(client).client.engine.backend

    def do(self, client: str, step: Callable[[Backend, float], Coroutine[Any, Any, T]]) -> T:
        world, process = self._world.world, self._world.members[client].process
        outcome: list[T | Exception] = []

        async def run() -> None:
            try:
                outcome.append(await step(self.backends[client], process.now() + 5.0))
            except Exception as error:  # a result too
                outcome.append(error)

        process.start(run(), "step")
        world.run(world.now + 0.001)
        answer = outcome[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def end(self) -> None:
        self._world.end()


class Sides(NamedTuple):
    real: Real
    simulated: Simulated


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[Sides]:
    sides = Sides(Real(tmp_path), Simulated())
    for client in CLIENTS:
        for side in sides:
            side.open(client)
    # Create the real file: verbs that only read report a missing file, and in the model it always exists.
    sides.real.do("a", lambda backend, by: backend.advance_register("file", 1, nonce="f" * 32, keep=LONG, deadline=by))
    yield sides
    for client in CLIENTS:
        sides.real.do(client, lambda backend, _: backend.close())
    sides.simulated.end()


class Steps:
    """Random steps on both sides, and their results without the parts that must differ."""

    def __init__(
        self,
        sides: Sides,
        seed: int,
        *,
        shapes: Sequence[tuple[int | None, bool]] = SHAPES,
        owners: Sequence[str] = ("",),
    ) -> None:
        self._sides = sides
        self._shapes, self._owners = shapes, owners
        self._random = random.Random(seed)  # noqa: S311  (it must be repeatable)
        self._tickets: dict[str, list[Claim]] = {client: [] for client in CLIENTS}
        self._fences: dict[str, dict[str, int]] = {"Real": {}, "Simulated": {}}
        self.kinds: set[str] = set()

    def step(self) -> tuple[object, object]:
        draw = self._random
        client = draw.choice(CLIENTS)
        mine = self._tickets[client]
        verbs = ["acquire", "acquire", "acquire", "inspect", "break", "restart", "acquire all", "advance", "read"] + (
            ["release", "again", "renew"] * 2 if mine else []
        )
        verb = draw.choice(verbs)
        if verb in {"acquire all", "advance", "read"}:
            return self._step_without_ticket(verb, client)
        if verb == "acquire":
            mine.append(self._new_ticket(client))
        ticket = mine[-1] if verb == "acquire" else draw.choice(mine) if mine else None
        queue, broken = draw.random() < 0.7, draw.choice([None, *list(self._fences["Real"])[-4:]])
        if verb == "restart" and draw.random() < 0.7:
            verb = "inspect"
        name = draw.choice(NAMES)
        first, second = (
            self._do(side, client, verb, ticket, queue=queue, name=name, broken=broken) for side in self._sides
        )
        return (verb, first), (verb, second)

    def _step_without_ticket(self, verb: str, client: str) -> tuple[object, object]:
        draw = self._random
        if verb == "acquire all":
            tickets = [replaced(self._new_ticket(client, name), limit=1, exclusive=True) for name in sorted(NAMES)]
            self._tickets[client] += tickets
            first, second = (self._try_acquire_all(side, client, tickets) for side in self._sides)
        elif verb == "advance":
            name, number, nonce = draw.choice(NAMES), draw.randint(1, 8), draw.choice("ab") * 32
            first, second = (
                side.do(
                    client,
                    lambda backend, by: backend.advance_register(name, number, nonce=nonce, keep=LONG, deadline=by),
                )
                for side in self._sides
            )
            self.kinds.add(f"advance {first}")
        else:
            first, second = (
                side.do(client, lambda backend, by: backend.read_registers([*NAMES, "none"], deadline=by))
                for side in self._sides
            )
        return (verb, first), (verb, second)

    def _new_ticket(self, client: str, name: str | None = None) -> Claim:
        draw = self._random
        limit, exclusive = draw.choice(self._shapes)
        nonce = self._sides.simulated.new_nonce(client, 0)
        ttl = draw.choice([LONG, LONG, OVER])
        info = f'{{"who": {{"host": "{client}", "pid": 1, "program": "test"}}, "meta": {{}}}}'
        delay, owner = draw.choice([0.0] * 7 + [OVER]), draw.choice(self._owners)
        return Claim(name or draw.choice(NAMES), nonce, ttl, limit, exclusive, client, info, delay, owner)

    def _do(
        self,
        side: Real | Simulated,
        client: str,
        verb: str,
        ticket: Claim | None,
        *,
        queue: bool,
        name: str,
        broken: str | None,
    ) -> object:
        fences = self._fences[type(side).__name__]
        match verb, ticket:
            case (("acquire" | "again"), Claim()):
                return self._try_acquire(side, client, ticket, fences, queue=queue)
            case "release", Claim():
                return side.do(client, lambda backend, by: backend.release([ticket], deadline=by))
            case "renew", Claim():
                outcomes = side.do(client, lambda backend, by: backend.renew([ticket], deadline=by))
                return [isinstance(outcome, Live) for outcome in outcomes]
            case "break", _:
                fence = fences.get(broken or "", 1)
                return side.do(client, lambda backend, by: backend.break_lock(name, fence, deadline=by))
            case "restart", _:
                side.do(client, lambda backend, _: backend.close())
                side.open(client)
                self._tickets[client].clear()
                return None
            case _:
                return _facts(side.do(client, lambda backend, by: backend.inspect(name, deadline=by)), fences)

    def _try_acquire(
        self, side: Real | Simulated, client: str, ticket: Claim, fences: dict[str, int], *, queue: bool
    ) -> object:
        try:
            outcome = side.do(client, lambda backend, by: backend.try_acquire(ticket, queue=queue, deadline=by))
        except LimitConflict as error:
            return "conflict", error.ours, error.theirs
        return self._outcome(ticket, outcome, fences)

    def _try_acquire_all(self, side: Real | Simulated, client: str, tickets: list[Claim]) -> object:
        fences = self._fences[type(side).__name__]
        outcomes = side.do(client, lambda backend, by: backend.try_acquire_all(tickets, deadline=by))
        self.kinds.add(f"all: {len(outcomes)}")
        return [self._outcome(ticket, outcome, fences) for ticket, outcome in zip(tickets, outcomes, strict=False)]

    def _outcome(self, ticket: Claim, outcome: Granted | Waiting, fences: dict[str, int]) -> object:
        if isinstance(outcome, Granted):
            self.kinds.add("granted")
            is_new = ticket.nonce not in fences
            grew = all(outcome.fence > fence for nonce, fence in fences.items() if nonce != ticket.nonce)
            if ticket.owner and outcome.fence in [fence for nonce, fence in fences.items() if nonce != ticket.nonce]:
                self.kinds.add("joined")
            is_same = outcome.fence == fences.setdefault(ticket.nonce, outcome.fence)
            fences[ticket.nonce] = outcome.fence
            return "granted", is_new, is_same, grew
        self.kinds.add("waiting")
        return "waiting", round(outcome.poll_after), outcome.holder


def _facts(info: LockInfo, fences: dict[str, int]) -> object:
    nonces = {fence: nonce for nonce, fence in fences.items()}
    return (
        [(holder.agent, nonces.get(holder.fence or 0), holder.exclusive, holder.limit) for holder in info.holders],
        [(waiter.agent, waiter.fence, waiter.exclusive, waiter.limit) for waiter in info.waiters],
    )


@pytest.mark.parametrize("seed", range(12))
def test_the_model_answers_as_the_file(sides: Sides, seed: int) -> None:
    sequence = Steps(sides, seed)

    steps = [sequence.step() for _ in range(120)]

    for number, (real, simulated) in enumerate(steps):
        assert real == simulated, f"step {number}"
    assert sequence.kinds >= {"granted", "waiting", "all: 1", "advance True", "advance False"}


@pytest.mark.parametrize("seed", range(4))
def test_the_model_answers_as_the_file_with_named_owners(sides: Sides, seed: int) -> None:
    sequence = Steps(sides, seed, shapes=SHAPES[:1], owners=("", "x", "y"))

    steps = [sequence.step() for _ in range(120)]

    for number, (real, simulated) in enumerate(steps):
        assert real == simulated, f"step {number}"
    assert sequence.kinds >= {"joined", "waiting"}
