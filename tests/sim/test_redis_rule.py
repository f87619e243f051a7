"""Scripts that violate the rule: owners, several locks at once, registers and records included.

The memory protocol implements in Python what the scripts implement in Lua. The same random steps run on both, in two
worlds with equal clocks, and must give the same results: holders, the order of waiters, shared fences. Mutated scripts
show that the steps detect mistakes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import pytest

from holdfast.backends.redis.protocol import queue, registers
from holdfast.core.ports import Backend, Record
from holdfast.core.tickets import Claim, Granted, LeaseGone, LockInfo
from holdfast.errors import LimitConflict
from holdfast_lab.sim.choices import Choices
from holdfast_lab.sim.mutants.base import replaced
from holdfast_lab.sim.mutants.redis import edited
from holdfast_lab.sim.run import Plan
from holdfast_lab.sim.scenarios import SmallWorld
from holdfast_lab.sim.servers.redis.server import GetsetServer, RedisServer, SetnxServer

T = TypeVar("T")

NAMES = ("a{tag}", "b{tag}", "c")  # two in one slot of a Cluster
OWNERS = ("", "", "one", "one", "other")
NONCES = ("", "a", "b")  # of records
POLL = 0.5  # seconds between the polls of waiters: less than the lease of a woken waiter


class Side:
    """A world with one client, which does what the steps say."""

    def __init__(self, plan: Plan) -> None:
        self._small = SmallWorld(plan, Choices(decisions=()))
        self._member = self._small.add("client")
        self.backend: Backend = self._member.client.engine.backend
        self.new_nonce = self._small.recorder.new_nonce
        self.fences: dict[str, int] = {}  # by nonce
        self.steps = 0  # calls of the backend to acquire several locks

    def do(self, step: Callable[[Backend, float], Coroutine[Any, Any, T]]) -> T:
        """Run one step, which takes no more than a few milliseconds."""
        outcome: list[T | Exception] = []

        async def run() -> None:
            try:
                outcome.append(await step(self.backend, self._member.process.now() + 5.0))
            except Exception as error:  # an answer too
                outcome.append(error)

        self._member.process.start(run(), "step")
        self.let_pass(0.01)
        (answer,) = outcome
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def now(self) -> float:
        return self._small.world.now

    def let_pass(self, seconds: float) -> None:
        self._small.world.run(self.now + seconds)

    def end(self) -> None:
        self._small.end()

    # ── the verbs; each returns the part of its answer that must be the same on both sides ───────────────────────

    def try_acquire(self, ticket: Claim, *, queue: bool) -> str:
        try:
            answer = self.do(lambda backend, deadline: backend.try_acquire(ticket, queue=queue, deadline=deadline))
        except LimitConflict as conflict:
            return f"limit {conflict.theirs}"
        return self._outcome(ticket, answer)

    def try_acquire_all(self, tickets: list[Claim]) -> list[str]:
        """Request the tickets in as many calls as needed, until one ticket has to wait."""
        answers: list[str] = []
        while len(answers) < len(tickets) and "wait" not in answers:
            answers += self._try_acquire_some(tickets[len(answers) :])
        return answers

    def _try_acquire_some(self, tickets: list[Claim]) -> list[str]:
        self.steps += 1
        answers = self.do(lambda backend, deadline: backend.try_acquire_all(tickets, deadline=deadline))
        return [self._outcome(ticket, answer) for ticket, answer in zip(tickets, answers, strict=False)]

    def _outcome(self, ticket: Claim, answer: object) -> str:
        if isinstance(answer, Granted):
            self.fences[ticket.nonce] = answer.fence
            return "in"
        return "wait"

    def release(self, tickets: list[Claim]) -> list[object]:
        return list(self.do(lambda backend, deadline: backend.release(tickets, deadline=deadline)))

    def renew(self, ticket: Claim) -> bool:
        (answer,) = self.do(lambda backend, deadline: backend.renew([ticket], deadline=deadline))
        return not isinstance(answer, LeaseGone)

    def break_lock(self, ticket: Claim) -> bool:
        fence = self.fences[ticket.nonce]
        return self.do(lambda backend, deadline: backend.break_lock(ticket.name, fence, deadline=deadline))

    def advance_register(self, name: str, number: int, nonce: str) -> bool:
        return self.do(
            lambda backend, deadline: backend.advance_register(name, number, nonce=nonce, keep=1e6, deadline=deadline)
        )

    def read_registers(self) -> list[int]:
        return list(self.do(lambda backend, deadline: backend.read_registers(NAMES, deadline=deadline)))

    def swap_record(self, name: str, expected: str, nonce: str, keep: float) -> object:
        record = Record(nonce, f"of {nonce}") if nonce else None

        def swap(backend: Any, deadline: float) -> Any:
            return backend.swap_record(name, expected, record, keep=keep, deadline=deadline)

        return self.do(swap)

    def holders_and_waiters(self, *, by_name: bool) -> list[object]:
        """The holders, grouped by fence, and the waiters in order."""

        def shown(info: LockInfo) -> object:
            together: dict[int | None, set[str]] = {}
            for holder in info.holders:
                together.setdefault(holder.fence, set()).add(holder.agent if by_name else "?")
            return info.name, sorted(map(sorted, together.values())), [waiter.agent for waiter in info.waiters]

        # `locks` is slow on purpose, and leases would expire during it.
        return [shown(info) for info in map(self._inspect, NAMES) if info.holders or info.waiters]

    def _inspect(self, name: str) -> LockInfo:
        return self.do(lambda backend, deadline: backend.inspect(name, deadline=deadline))


class Known(NamedTuple):
    """The state of a granted or waiting ticket."""

    ticket: Claim
    ends: float | None  # of its lease; None while it waits


class Steps:
    """Random steps, done to both sides."""

    def __init__(self, sides: list[Side], seed: int, *, shares: bool, lapses: bool, polls: bool = False) -> None:
        """`polls`: waiters poll after each step, because on one side a release grants the lock to the next one."""
        self._sides = sides
        self._polls = polls
        self._draw = random.Random(seed)  # noqa: S311  (it has to be repeatable)
        self._shares = shares
        self._lapses = lapses
        self._known: dict[str, Known] = {}
        self.history: list[str] = []

    def step(self) -> None:
        often = {"try_acquire": 6, "all": 2, "release": 4, "renew": 2, "pass": 3, "break": 1, "drop": 1, "register": 2}
        if self._shares:  # then it has records
            often["record"] = 2
        (verb,) = self._draw.choices([*often], weights=[*often.values()])
        getattr(self, f"_{verb}")()
        if self._polls:
            self._poll()
        self._compare("holders and waiters", lambda side: side.holders_and_waiters(by_name=self._shares))

    @property
    def _now(self) -> float:
        return self._sides[0].now

    def _compare(self, description: str, step: Callable[[Side], T]) -> T:
        self.history.append(description)
        first, second = (step(side) for side in self._sides)
        latest = max(side.now for side in self._sides)
        for side in self._sides:
            side.let_pass(latest - side.now)
        assert first == second, "\n".join(self.history)
        return first

    def _new(self, name: str, *, exclusive: bool) -> Claim:
        limit, is_alone = (
            (1, True) if exclusive else self._draw.choice([(1, True), (1, True), (None, False), (2, False)])
        )
        nonces = {side.new_nonce("client", len(self.history)) for side in self._sides}
        (nonce,) = nonces
        owner = self._draw.choice(OWNERS) if self._shares and is_alone else ""
        # A step begins at a whole hundredth of a second and takes milliseconds: no lease expires during a step.
        ttl = self._draw.choice([2.205, 5.205, 1000.205]) if self._lapses else 1000.205
        return Claim(name, nonce, ttl, limit, is_alone, f"{owner}#{int(nonce, 16)}", "{}", owner=owner)

    def _try_acquire(self) -> None:
        ticket = self._new(self._draw.choice(NAMES), exclusive=not self._shares)
        self._request(ticket, queue=self._shares and self._draw.random() < 0.8)

    def _request(self, ticket: Claim, *, queue: bool) -> None:
        answer = self._compare(f"try_acquire {ticket} {queue=}", lambda side: side.try_acquire(ticket, queue=queue))
        self._note_outcome(ticket, answer, queue=queue)

    def _all(self) -> None:
        # A Cluster may need two calls, one after the other, so these leases do not expire during the test.
        names = sorted(self._draw.sample(NAMES, 2))
        tickets = [replaced(self._new(name, exclusive=True), ttl=1000.205) for name in names]
        answers = self._compare(f"try_acquire_all {tickets}", lambda side: side.try_acquire_all(tickets))
        for ticket, answer in zip(tickets, answers, strict=False):
            self._note_outcome(ticket, answer, queue=False)

    def _note_outcome(self, ticket: Claim, answer: str, *, queue: bool) -> None:
        if answer == "in":
            self._known[ticket.nonce] = Known(ticket, self._now + ticket.ttl)
        elif answer == "wait" and queue:
            self._known[ticket.nonce] = Known(ticket, None)

    def _pick(self, *, is_granted: bool | None = None) -> Claim | None:
        tickets = [known.ticket for known in self._known.values() if is_granted in (None, known.ends is not None)]
        return self._draw.choice(tickets) if tickets else None

    def _release(self) -> None:
        tickets = [ticket for ticket in {self._pick(), self._pick()} if ticket is not None]
        for ticket in tickets:
            del self._known[ticket.nonce]
        self._compare(f"release {tickets}", lambda side: side.release(tickets))

    def _renew(self) -> None:
        ticket = self._pick(is_granted=True)
        if ticket is not None:
            assert self._compare(f"renew {ticket}", lambda side: side.renew(ticket))
            self._known[ticket.nonce] = Known(ticket, self._now + ticket.ttl)

    def _drop(self) -> None:
        """Forget a granted ticket, as if its holder had died: it expires."""
        ticket = self._pick(is_granted=True)
        if ticket is not None:
            del self._known[ticket.nonce]

    def _break(self) -> None:
        ticket = self._pick(is_granted=True)
        if ticket is None:
            return
        assert self._compare(f"break {ticket}", lambda side: side.break_lock(ticket))
        fence = self._sides[0].fences[ticket.nonce]
        for other in [nonce for nonce in self._known if self._sides[0].fences.get(nonce) == fence]:
            del self._known[other]

    def _pass(self) -> None:
        """Let time pass. Waiters keep polling."""
        for _ in range(self._draw.choice([1, 3, 9])):
            self.history.append("time")
            for side in self._sides:
                side.let_pass(POLL)
            for nonce in [nonce for nonce, known in self._known.items() if known.ends and known.ends < self._now + 1]:
                del self._known[nonce]  # it may expire at any moment now
            self._poll()

    def _poll(self) -> None:
        for ticket in [known.ticket for known in self._known.values() if known.ends is None]:
            self._request(ticket, queue=True)

    def _register(self) -> None:
        name, number, nonce = self._draw.choice(NAMES), 10**17 + self._draw.randrange(9), self._draw.choice("ab")
        self._compare(f"register {name} {number} {nonce}", lambda side: side.advance_register(name, number, nonce))
        self._compare("read_registers", lambda side: side.read_registers())

    def _record(self) -> None:
        name, expected, nonce = self._draw.choice(NAMES), self._draw.choice(NONCES), self._draw.choice(NONCES)
        keep = self._draw.choice([2.205, 1000.205])
        self._compare(f"record {name} {expected} {nonce}", lambda side: side.swap_record(name, expected, nonce, keep))


class Single(RedisServer):
    clusters = 0.0


class Cluster(RedisServer):
    clusters = 1.0


@contextmanager
def two_sides(server: type[RedisServer]) -> Iterator[list[Side]]:
    sides = [Side(Plan(backend="memory")), Side(Plan(backend="redis", server=server))]
    try:
        yield sides
    finally:
        for side in sides:
            side.end()


def steps_on(server: type[RedisServer], seed: int) -> list[Side]:
    with two_sides(server) as sides:
        is_getset = issubclass(server, GetsetServer)  # it uses the clocks of clients, so waiters wait longer
        steps = Steps(sides, seed, shares=not issubclass(server, SetnxServer), lapses=not is_getset)
        for _ in range(80):
            steps.step()
    return sides


@pytest.mark.parametrize("server", [Single, Cluster, SetnxServer, GetsetServer])
@pytest.mark.parametrize("seed", range(12))
def test_the_same_steps_give_the_same_results_as_on_memory(server: type[RedisServer], seed: int) -> None:
    memory, redis = steps_on(server, seed)

    assert redis.steps == memory.steps or server is not Single, "several locks on one server take one call"


# ── scripts with a mistake ───────────────────────────────────────────────────────────────────────────────────────────

_QUEUE = (queue._TRY_ACQUIRE, queue._TRY_ACQUIRE_ALL, queue._RELEASE, queue._RENEW, queue._BREAK)
_SCRIPTS = (*_QUEUE, registers.ADVANCE, registers.READ, registers.SWAP_RECORD, registers.READ_RECORD)
MISTAKES = {
    "an owner is granted during another's lease": (
        "if owner and fence_of_owner(owner, value) then",
        "if owner and is_for_several(value) then",
    ),
    "an owner waits for itself": ("if owner and fence_of_owner(owner, value) then", "if false then"),
    "each of an owner's tickets has a fence of its own": ("local fence = fence_of_owner(owner, value)", "local fence"),
    "the first of an owner's tickets frees the lock": (
        "redis.call('SET', lock, new_value, 'PXAT', last[2])",
        (
            "if new_value == SHARED then redis.call('SET', lock, new_value, 'PXAT', last[2]) "
            "else redis.call('DEL', lock) end"
        ),
    ),
    "a poll ends the leases of an owner": (
        "'-inf', several and now",
        "'-inf', value == SHARED and now",
    ),
    "readers are granted with an owner": (
        "elseif value and value ~= SHARED then\n",
        "elseif value and not is_for_several(value) then\n",
    ),
    "a break ends one of an owner's tickets": (
        "      broken = 1\n    end\n",
        "      broken = 1\n      break\n    end\n",
    ),
    "several are acquired although one has to wait": ("replies[number][1] ~= 'granted' then", "false then"),
    "a register decreases": ("if not is_less(last[1] or '0', number) then", "if last[1] == number then"),
    "the nonce of a register is not compared": (
        "last[1] == number and last[2] == nonce and 1",
        "last[1] == number and 1",
    ),
    "a record is replaced without a comparison": (
        "if nonce ~= expected and (",
        "if nonce ~= '' and expected == '' and (",
    ),
    "a repeated write of a record is refused": ("(new == '' or nonce ~= new)", "true"),
    "a record is kept forever": ("  redis.call('PEXPIRE', KEYS[1], keep_ms)\nend\nreturn 1", "end\nreturn 1"),
    "a register is compared as a Lua number": (
        "  return left < right\n",
        "  return tonumber(left) < tonumber(right)\n",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mutated_script_is_detected(mistake: str) -> None:
    wrong = type("Wrong", (Single,), {"texts": edited(_SCRIPTS, MISTAKES[mistake])})

    with pytest.raises(AssertionError):
        for seed in (2, 20, *range(30)):  # world 2 detects all but three, world 20 the rarest
            steps_on(wrong, seed)
