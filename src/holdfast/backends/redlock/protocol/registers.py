"""Registers on a majority of nodes: numbers that never decrease, changed by compare-and-set (CASPaxos).

    1  Prepare: request a promise for a unique ballot from all nodes. A majority promises and returns the states that it
       accepted before. The one with the latest ballot is the current state of the register, or about to become it.
    2  Accept: if that number is lower, propose ours; otherwise propose the same state again. When a majority has
       accepted it, it is the state of the register.

Any two majorities share a node, and a node that has promised a ballot accepts no earlier one. So a later call finds the
agreed state or a successor of it, and numbers only grow: of two calls for one number, at most one finds its own nonce.
Clocks do not matter: the client's clock only suggests a round, and a node refuses one that is too low. Nodes must keep
their promises and states.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.backends.redis.port import Call, Reply
from holdfast.backends.redis.protocol.keys import OtherKeys, register_key
from holdfast.backends.redlock import lua
from holdfast.errors import OutcomeUnknown, QuorumError

if TYPE_CHECKING:
    from holdfast.backends.redlock.config import RedlockConfig
    from holdfast.backends.redlock.port import RedlockPort
    from holdfast.backends.redlock.protocol.node_health import NodeHealth
    from holdfast.core.ports import Runtime

# Seconds that a node keeps a register and its promise beyond the requested time, because no request is delayed for so
# long and the nodes are not written at the same time.
GRACE = 3600.0
PAUSE, PAUSE_MAX = 0.004, 0.2  # longest pause in seconds after a conflict; doubled up to the maximum


class State(NamedTuple):
    """An accepted state, and its ballot."""

    round: int
    by: str
    number: int
    nonce: str
    keep_ms: int

    @classmethod
    def parse(cls, text: bytes) -> State | None:
        """None if nothing was accepted yet."""
        if not text:
            return None
        round_, by, number, nonce, keep_ms = text.decode().split(":")
        return cls(int(round_), by, int(number), nonce, int(keep_ms))


_NONE = State(0, "", 0, "", 0)


class _Behind(NamedTuple):
    """A node has promised a later ballot."""

    round: int


class QuorumRegisters:
    """A mixin for the backend: its registers."""

    _config: RedlockConfig
    _port: RedlockPort
    _health: NodeHealth
    _runtime: Runtime
    _quorum: int

    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        """Advance a register. Returns whether it was lower, or was set by this call before.

        Raises:
            QuorumError: too few nodes replied; nothing was changed.
            OutcomeUnknown: too few nodes replied to the second request, or other clients were faster each time.
        """
        await self._health.handshake(deadline)
        state = await self._agree_on_state(name, number, nonce, keep, deadline)
        return (state.number, state.nonce) == (number, nonce)

    async def read_registers(self, names: Sequence[str], *, deadline: float) -> list[int]:
        """The number of each register; 0 if it does not exist."""
        await self._health.handshake(deadline)
        calls = [Call(lua.READ, register_key(self._config.redis.prefix, name), ()) for name in names]
        numbers = []
        for name, replies in zip(names, await self._run_on_eligible(calls, deadline), strict=True):
            states = [state for state in (State.parse(bytes(reply)) for reply in replies) if state is not None]
            last = max(states, default=_NONE)
            if states and states.count(last) < self._quorum:
                # An advance is in progress or its client died. Complete it, so that later reads return the same.
                last = await self._agree_on_state(name, 0, "", 0.0, deadline)
            numbers.append(last.number)
        return numbers

    async def _agree_on_state(self, name: str, number: int, nonce: str, keep: float, deadline: float) -> State:
        """The state that a majority has accepted: this one, or the one before if it is not lower."""
        keys = register_key(self._config.redis.prefix, name)
        behind, tries = 0, 0
        while True:
            round_ = max(behind + 1, int(self._runtime.wall() * 1000))
            # Every ballot has its own name, so that a late request of an earlier ballot is not mistaken for this one.
            wanted = State(round_, self._runtime.nonce(), number, nonce, math.ceil((keep + GRACE) * 1000))
            outcome = await self._try_ballot(keys, wanted, deadline)
            if not isinstance(outcome, _Behind):
                return outcome
            behind, tries = max(behind, outcome.round), tries + 1
            pause = self._runtime.jitter() * min(PAUSE_MAX, PAUSE * 2 ** min(tries, 10))
            if self._runtime.now() + pause >= deadline:
                raise OutcomeUnknown(
                    backend=self._config.redis.url, problem="other clients advanced the same register each time"
                )
            await self._runtime.sleep(pause)

    async def _try_ballot(self, keys: OtherKeys, wanted: State, deadline: float) -> State | _Behind:
        promises = await self._run_round(keys, wanted, "", deadline)
        if isinstance(promises, _Behind):
            return promises
        accepted = [state for state in map(State.parse, promises) if state is not None]
        last = max(accepted, default=_NONE)  # by its ballot
        state = wanted._replace(keep_ms=max(wanted.keep_ms, last.keep_ms))
        if last.number >= wanted.number:
            # Our own state is written again, to be kept for the time that is requested now.
            if not accepted or (last.nonce != wanted.nonce and accepted.count(last) >= self._quorum):
                return last
            state = state._replace(number=last.number, nonce=last.nonce)
        try:
            agreed = await self._run_round(keys, state, ":".join(map(str, state)), deadline)
        except QuorumError as error:  # nodes that did not reply may have accepted it
            raise OutcomeUnknown(backend=self._config.redis.url, problem=error.problem) from error
        return agreed if isinstance(agreed, _Behind) else state

    async def _run_round(self, keys: OtherKeys, ballot: State, text: str, deadline: float) -> list[bytes] | _Behind:
        """The states that a majority returned with its yes."""
        call = Call(lua.ADVANCE, keys, (ballot.by, ballot.round, ballot.keep_ms, text))
        (replies,) = await self._run_on_eligible([call], deadline)
        agreed = [bytes(reply[1]) for reply in replies if reply[0] == b"yes"]
        if len(agreed) >= self._quorum:
            return agreed
        return _Behind(max(int(reply[1]) for reply in replies if reply[0] == b"behind"))

    async def _run_on_eligible(self, calls: Sequence[Call], deadline: float) -> list[list[Reply]]:
        """For each call the replies of the eligible nodes, at least a majority.

        Raises:
            QuorumError: too few nodes replied.
        """
        nodes = [number for number in self._health.responsive() if self._port.server_run(number) is not None]
        limit = min(deadline, self._runtime.now() + self._config.node_timeout)
        results = []
        for replied in await self._health.run_each([dict.fromkeys(nodes, call) for call in calls], limit):
            errors = self._health.errors_in(replied)
            eligible = [reply for number, reply in replied.items() if number not in errors]
            if len(eligible) < self._quorum:
                raise self._health.quorum_error({**self._health.unresponsive, **errors})
            results.append(eligible)
        return results
