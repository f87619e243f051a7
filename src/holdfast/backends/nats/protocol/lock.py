"""The lock protocol on a bucket of NATS: a lock is one key, and the nonce in its value identifies the holder.

    acquire    put, if the last entry of the key is the expected marker or does not exist. Refused: read the key.
               Another client's: wait. A marker: put again and expect it. Ours, by a put without an answer: renew it.
    renew      put, if the last entry is the one that we know; refused: read the key, and renew it if it is ours.
    release    put a marker, if the last entry is the one that we know; otherwise as for renew.

Only a put decides, never a read: a server that was the leader until just now may answer a read with old data. The
sequence numbers of the stream grow with every entry and are never used again. So a late request expects an entry that
is not the last one any more, and has no effect. Only a request that expects 0, a key without an entry, can have one. So
a release leaves a marker for MARKER_SECONDS. If such a request arrives after that, its lease ends with the ttl.

The fence is the sequence number of the entry that acquired the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from holdfast.backends.base_backend import BaseBackend
from holdfast.backends.nats.port import Entry, NatsPort, Put
from holdfast.backends.nats.protocol.bucket import MARKER_SECONDS
from holdfast.backends.nats.protocol.guarantees import GUARANTEES, LACKS, REPLICAS_MIN, SINGLE
from holdfast.backends.nats.protocol.keys import LOCKS, lock_key
from holdfast.backends.nats.protocol.registers import BUSY_PAUSE, Registers
from holdfast.backends.nats.protocol.values import Value
from holdfast.core.clock import lease_deadline
from holdfast.core.one_by_one import OneByOne, result_or_error
from holdfast.core.ports import Runtime
from holdfast.core.tickets import (
    POLL_INTERVAL,
    Claim,
    Granted,
    LeaseGone,
    Live,
    LockInfo,
    Waiting,
    make_ticket_info,
    may_have_happened,
    process_text,
)
from holdfast.errors import BackendError, Unsupported
from holdfast.guarantees import Guarantees

GRANULARITY = 0.0  # the server never removes an entry before its ttl, which is rounded up to seconds
_KNOWN_MAX = 1000  # keys whose last marker is remembered
_CHUNK = 200  # keys read at once
_GONE = LeaseGone()


class _State:
    """The state of a claim."""

    seq = 0  # of the last entry of the ticket that is known; 0: not granted
    value: Value | None = None  # of the granted ticket
    expected: frozenset[int] = frozenset()  # the sequence numbers that puts without an answer expect

    def is_outdated(self, entry: Entry) -> bool:
        """An old leader has answered: it does not know the last entry of the ticket yet."""
        return 0 < entry.seq < self.seq


class NatsBackend(BaseBackend[NatsPort], OneByOne, Registers):
    """Locks in one bucket."""

    lacks = LACKS
    warnings: tuple[str, ...] = ()

    def __init__(self, url: str, port: NatsPort, runtime: Runtime, *, replicas: int, clock_skew: float) -> None:
        """`replicas` is the least number of copies of the bucket, 0 if any is accepted."""
        super().__init__(url, port, runtime)
        self._wakeups = port.wakeups
        self._replicas, self._skew = replicas, clock_skew
        self._markers: dict[str, int] = {}  # the last marker of a key that is known: only a hint, for the first put

    @property
    def guarantees(self) -> Guarantees:
        replicas = self._port.replicas or self._replicas or REPLICAS_MIN
        return GUARANTEES if replicas >= REPLICAS_MIN else SINGLE

    # ── acquire ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def try_acquire(self, claim: Claim, *, queue: bool, deadline: float) -> Granted | Waiting:
        if not claim.exclusive:
            raise Unsupported(backend="nats", what="readers and semaphores", others=("etcd", "redis", "postgresql"))
        if queue:
            self._wakeups.expect(claim)
        outcome = await self._try_acquire(claim, deadline)
        if isinstance(outcome, Granted):
            self._stop_waiting(claim)
        elif not queue and claim.unanswered:  # the engine does not withdraw it, but a put without an answer may arrive
            await self._release(claim, deadline)
        return outcome

    async def _try_acquire(self, claim: Claim, deadline: float) -> Granted | Waiting:
        key = lock_key(claim.name)
        last = self._markers.get(key, 0)
        while True:  # until the deadline, when the port raises BackendUnavailable
            granted = await self._create(claim, last, deadline)
            if granted is not None:
                return granted
            entry = await self._get(key, deadline)
            stored, previous = _value_of(entry), last
            last = entry.seq if entry.is_marker else 0
            if stored is not None and stored.nonce == claim.nonce:
                granted = await self._take_over(claim, entry.seq, stored, deadline)
                if granted is not None:
                    return granted
            elif not entry.is_marker:
                return Waiting(POLL_INTERVAL, "another program" if stored is None else process_text(stored.info))
            elif last == previous:  # another put is being executed, or an old leader answered
                await self._runtime.sleep(BUSY_PAUSE)

    async def _create(self, claim: Claim, last: int, deadline: float) -> Granted | None:
        """Granted, if this is the last entry of the key. A put without an answer is noted: it may be executed later."""
        value = Value(claim.nonce, 0, self._runtime.wall(), claim.agent, claim.info, claim.name)
        state, sent = _state_of(claim), self._runtime.now()
        try:
            put = Put(lock_key(claim.name), value.encode(), last, self._seconds(claim.ttl))
            seq = await self._put(put, deadline)
        except BaseException as error:
            if may_have_happened(error):
                claim.unanswered = True
                state.expected |= {last}
            raise
        if seq is None:
            return None
        state.seq, state.value = seq, value._replace(fence=seq)
        return Granted(seq, lease_deadline(sent, claim.ttl, GRANULARITY))

    async def _take_over(self, claim: Claim, seq: int, stored: Value, deadline: float) -> Granted | None:
        """Granted by the entry of a put that got no answer. It is renewed, because the start of its ttl is unknown."""
        state = _state_of(claim)
        state.seq, state.value = seq, stored
        renewed = await self._renew_any(claim, deadline)
        if isinstance(renewed, Live):
            return Granted(stored.fence, renewed.deadline)
        state.seq = 0
        return None

    async def wait(self, claim: Claim, until: float) -> None:
        self._port.watch(claim.nonce, lock_key(claim.name))
        notification = await self._wakeups.wait(claim, until)
        if notification is not None and notification.fence:
            self._remember(lock_key(claim.name), notification.fence)

    def _stop_waiting(self, claim: Claim) -> None:
        if self._wakeups.forget(claim):
            self._port.unwatch(claim.nonce)

    # ── release ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def release(self, claims: Sequence[Claim], *, deadline: float) -> list[bool | BackendError]:
        answers = await self._put_known(claims, self._release_marker, deadline)
        return [await result_or_error(self._released(claim, answers.get(claim), deadline)) for claim in claims]

    async def _released(self, claim: Claim, answer: int | BackendError | None, deadline: float) -> bool:
        if isinstance(answer, BackendError):
            raise answer
        if answer is None:
            return await self._release(claim, deadline)
        self._remember(lock_key(claim.name), answer)
        self._forget(claim)
        return True

    async def _release(self, claim: Claim, deadline: float) -> bool:
        """Read the last entry of a ticket and release it. Also make puts without an answer ineffective."""
        was_ours = await self._put_marker(claim, deadline)
        self._forget(claim)
        return was_ours

    async def _put_marker(self, claim: Claim, deadline: float) -> bool:
        key, state = lock_key(claim.name), _state_of(claim)
        while state.seq or state.expected:
            entry = await self._get(key, deadline)
            if not state.is_outdated(entry):
                if entry.is_marker and entry.value == claim.nonce.encode():
                    return True  # by a release that got no answer
                stored = _value_of(entry)
                is_ours = stored is not None and stored.nonce == claim.nonce
                if not is_ours and entry.seq not in state.expected:
                    break
                if await self._put(_marker(key, claim.nonce if is_ours else "", entry.seq), deadline) is not None:
                    return is_ours
            await self._runtime.sleep(BUSY_PAUSE)
        return False

    def _forget(self, claim: Claim) -> None:
        self._stop_waiting(claim)
        claim.state, claim.unanswered = None, False

    # ── renew ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def renew(self, claims: Sequence[Claim], *, deadline: float) -> list[Live | LeaseGone | BackendError]:
        sent = self._runtime.now()
        answers = await self._put_known(claims, self._renewal, deadline)
        return [await result_or_error(self._renewed(claim, answers.get(claim), sent, deadline)) for claim in claims]

    async def _renewed(
        self, claim: Claim, answer: int | BackendError | None, sent: float, deadline: float
    ) -> Live | LeaseGone:
        if isinstance(answer, BackendError):
            raise answer
        return await self._renew_any(claim, deadline) if answer is None else self._live(claim, answer, sent)

    async def _renew_any(self, claim: Claim, deadline: float) -> Live | LeaseGone:
        """Read the last entry of a granted ticket and renew it."""
        key, state = lock_key(claim.name), _state_of(claim)
        while state.seq:
            entry = await self._get(key, deadline)
            if not state.is_outdated(entry):
                stored = _value_of(entry)
                if stored is None or state.value is None or stored[:2] != state.value[:2]:
                    break
                state.seq, sent = entry.seq, self._runtime.now()
                seq = await self._put(self._renewal(claim), deadline)
                if seq is not None:
                    return self._live(claim, seq, sent)
            await self._runtime.sleep(BUSY_PAUSE)
        return _GONE

    def _live(self, claim: Claim, seq: int, sent: float) -> Live:
        _state_of(claim).seq = seq
        return Live(lease_deadline(sent, claim.ttl, GRANULARITY))

    def _renewal(self, claim: Claim) -> Put:
        state = _state_of(claim)
        value = b"" if state.value is None else state.value.encode()
        return Put(lock_key(claim.name), value, state.seq, self._seconds(claim.ttl))

    # ── operators ────────────────────────────────────────────────────────────────────────────────────────────────

    async def inspect(self, name: str, *, deadline: float) -> LockInfo:
        entries = await self._port.get([lock_key(name)], deadline=deadline, timed=True)
        return next(self._lock_infos(entries, name), LockInfo(name, (), ()))

    async def locks(self, prefix: str, *, deadline: float) -> list[LockInfo]:
        keys, infos = await self._port.keys(f"{LOCKS}>", deadline=deadline), []
        for start in range(0, len(keys), _CHUNK):
            entries = await self._port.get(keys[start : start + _CHUNK], deadline=deadline, timed=True)
            infos += [info for info in self._lock_infos(entries) if info.name.startswith(prefix)]
        return sorted(infos, key=lambda info: info.name)

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        while True:
            entry = await self._get(lock_key(name), deadline)
            stored = _value_of(entry)
            if stored is None or stored.fence != fence:
                return False
            if await self._put(_marker(lock_key(name), "", entry.seq), deadline) is not None:
                return True
            await self._runtime.sleep(BUSY_PAUSE)  # it was renewed since

    def _lock_infos(self, entries: Sequence[Entry], name: str = "") -> Iterator[LockInfo]:
        """The locks that a client holds. Without a `name`, only those whose value has the name."""
        for entry in entries:
            stored = _value_of(entry)
            if entry.is_marker or (stored is None and not name):
                continue
            value = stored or Value("", 0, 0.0, "another program", "", name)
            holder = make_ticket_info(
                info=value.info,
                fence=value.fence,
                agent=value.agent,
                since=value.since,
                remaining=entry.remaining - (self._skew if stored else 0),
                exclusive=True,
                limit=1,
            )
            yield LockInfo(value.name, (holder,), ())

    async def close(self) -> None:
        self._wakeups.wake_all()
        await super().close()

    # ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _put_known(
        self, claims: Sequence[Claim], make: Callable[[Claim], Put], deadline: float
    ) -> dict[Claim, int | BackendError | None]:
        """The answers to a put for each ticket whose last entry is known."""
        puts = {claim: make(claim) for claim in claims if _state_of(claim).seq}
        return dict(zip(puts, await self._port.put([*puts.values()], deadline=deadline), strict=True)) if puts else {}

    async def _get(self, key: str, deadline: float) -> Entry:
        (entry,) = await self._port.get([key], deadline=deadline)
        return entry

    def _release_marker(self, claim: Claim) -> Put:
        return _marker(lock_key(claim.name), claim.nonce, _state_of(claim).seq)

    def _remember(self, key: str, seq: int) -> None:
        if len(self._markers) >= _KNOWN_MAX:
            self._markers.clear()
        self._markers[key] = seq


def _marker(key: str, nonce: str, last: int) -> Put:
    """A marker over the last entry. With the nonce, a repeated release recognises its own marker."""
    return Put(key, nonce.encode(), last, MARKER_SECONDS, is_marker=True)


def _value_of(entry: Entry) -> Value | None:
    """The value of a lock's entry, with its fence; None: there is no lease of holdfast."""
    value = None if entry.is_marker else Value.parse(entry.value)
    return value and value._replace(fence=value.fence or entry.seq)


def _state_of(claim: Claim) -> _State:
    state = claim.state = claim.state or _State()
    return state
