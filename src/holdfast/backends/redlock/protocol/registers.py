"""Numbers that never go down, on a majority of nodes: a register that is changed by comparing (CASPaxos).

    1  Ask all nodes to promise themselves to a ballot that nobody else has. A majority does, and says what each has
       accepted before: what has the latest ballot is the mark as it is, or as it is about to be.
    2  If that is lower, ask them to accept ours in its place; else, to accept it once more. When a majority has said
       yes, that is the mark.

Any two majorities share a node, and a node that has promised itself accepts nothing of earlier ballots. So whoever
comes later finds what was agreed on, or a successor of it, and numbers only grow from one to the next: of two calls for
one number, one at most finds its own nonce. Clocks play no part: that of the client suggests a round, which is refused
where it is behind. What it needs is nodes that keep what they have said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.backends.redis.port import Call
from holdfast.backends.redis.protocol.keys import register_key
from holdfast.backends.redlock import lua
from holdfast.errors import HoldfastError, OutcomeUnknown, QuorumError

if TYPE_CHECKING:
    from holdfast.backends.redis.port import Reply
    from holdfast.backends.redis.protocol.keys import OtherKeys
    from holdfast.backends.redlock.config import RedlockConfig
    from holdfast.backends.redlock.port import RedlockPort
    from holdfast.backends.redlock.protocol.node_health import NodeHealth
    from holdfast.core.ports import Runtime

# Seconds that a node keeps a mark, and what it has promised, beyond what was asked for: no request is under way for so
# long, and nodes are told one after the other.
GRACE = 3600.0
PAUSE, PAUSE_MAX = 0.004, 0.2  # seconds after somebody was faster, at most; doubled from time to time


class State(NamedTuple):
    """What a node has accepted, and by which ballot."""

    round: int
    by: str
    number: int
    nonce: str
    keep_ms: int

    @classmethod
    def parse(cls, text: bytes) -> State | None:
        """None: nothing yet."""
        if not text:
            return None
        round_, by, number, nonce, keep_ms = text.decode().split(":")
        return cls(int(round_), by, int(number), nonce, int(keep_ms))


_NONE = State(0, "", 0, "", 0)


class _Behind(NamedTuple):
    """Somebody has a later ballot."""

    round: int


class QuorumRegisters:
    """The marks of one client."""

    def __init__(self, config: RedlockConfig, port: RedlockPort, health: NodeHealth, runtime: Runtime) -> None:
        self._config = config
        self._port = port
        self._health = health
        self._runtime = runtime
        self._quorum = len(port.nodes) // 2 + 1

    async def put(self, name: str, number: int, nonce: str, keep: float, deadline: float) -> bool:
        """Raise it; whether it was lower, or is that call's already.

        Raises:
            QuorumError: too few nodes answer; nothing was changed.
            OutcomeUnknown: too few answered in the end, or others were faster all the time.
        """
        await self._health.handshake(deadline)
        state = await self._agree(name, number, nonce, keep, deadline)
        return (state.number, state.nonce) == (number, nonce)

    async def get(self, names: Sequence[str], deadline: float) -> list[int]:
        """Each; 0 where there is none."""
        await self._health.handshake(deadline)
        calls = [Call(lua.READ, register_key(self._config.prefix, name), ()) for name in names]
        found = []
        for name, said in zip(names, await self._ask(calls, deadline), strict=True):
            states = [state for state in (State.parse(bytes(reply)) for reply in said) if state is not None]
            last = max(states, default=_NONE)
            if states and states.count(last) < self._quorum:
                # Being raised, or by one who died at it: what is told has to be so for who comes next, too.
                last = await self._agree(name, 0, "", 0.0, deadline)
            found.append(last.number)
        return found

    async def _agree(self, name: str, number: int, nonce: str, keep: float, deadline: float) -> State:
        """What a majority has now: this, or what was there and is not lower."""
        keys = register_key(self._config.prefix, name)
        behind, tries = 0, 0
        while True:
            round_ = max(behind + 1, int(self._runtime.wall() * 1000))
            # Each has a name of its own, or a request of the one before could be taken for one of this.
            wanted = State(round_, self._runtime.nonce(), number, nonce, math.ceil((keep + GRACE) * 1000))
            outcome = await self._try(keys, wanted, deadline)
            if not isinstance(outcome, _Behind):
                return outcome
            behind, tries = max(behind, outcome.round), tries + 1
            pause = self._runtime.jitter() * min(PAUSE_MAX, PAUSE * 2 ** min(tries, 10))
            if self._runtime.now() + pause >= deadline:
                raise OutcomeUnknown(backend=self._config.url, problem="others raised the same mark all the time")
            await self._runtime.sleep(pause)

    async def _try(self, keys: OtherKeys, wanted: State, deadline: float) -> State | _Behind:
        promises = await self._run_round(keys, wanted, "", deadline)
        if isinstance(promises, _Behind):
            return promises
        accepted = [state for state in map(State.parse, promises) if state is not None]
        last = max(accepted, default=_NONE)  # by its ballot
        state = wanted._replace(keep_ms=max(wanted.keep_ms, last.keep_ms))
        if last.number >= wanted.number:
            # Our own is written once more: to be kept for as long as is asked for now.
            if not accepted or (last.nonce != wanted.nonce and accepted.count(last) >= self._quorum):
                return last
            state = state._replace(number=last.number, nonce=last.nonce)
        try:
            agreed = await self._run_round(keys, state, ":".join(map(str, state)), deadline)
        except QuorumError as error:  # those that did not answer may have accepted it
            raise OutcomeUnknown(backend=self._config.url, problem=error.problem) from error
        return agreed if isinstance(agreed, _Behind) else state

    async def _run_round(self, keys: OtherKeys, by: State, text: str, deadline: float) -> list[bytes] | _Behind:
        """What a majority said yes with."""
        call = Call(lua.ADVANCE, keys, (by.by, by.round, by.keep_ms, text))
        (said,) = await self._ask([call], deadline)
        agreed = [bytes(reply[1]) for reply in said if reply[0] == b"yes"]
        if len(agreed) >= self._quorum:
            return agreed
        return _Behind(max(int(reply[1]) for reply in said if reply[0] == b"behind"))

    async def _ask(self, calls: Sequence[Call], deadline: float) -> list[list[Reply]]:
        """Of each, what a majority or more of those that count have answered.

        Raises:
            QuorumError: they are too few.
        """
        nodes = [number for number in self._health.responsive() if self._port.server_run(number) is not None]
        by = min(deadline, self._runtime.now() + self._config.node_timeout)
        asked = [(number, call) for call in calls for number in nodes]
        replies = iter(await self._health.run_calls(asked, by) if asked else ())
        answers = []
        for _ in calls:
            said: list[Reply] = []
            errors = self._health.unresponsive
            for number in nodes:
                reply = next(replies)
                if isinstance(reply, HoldfastError):
                    errors[number] = reply
                elif not self._health.is_eligible(number):
                    errors[number] = self._health.ineligible(number)
                else:
                    said.append(reply)
            if len(said) < self._quorum:
                raise self._health.quorum_error(errors)
            answers.append(said)
        return answers
