"""The lock protocol on a dict. It is the reference for the other protocols, which are written in SQL or Lua."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from holdfast.backends.memory.port import KeptRecord, MemoryPort, QueueEntry, Register, Store
from holdfast.backends.memory.protocol.guarantees import GUARANTEES, LACKS
from holdfast.core.clock import lease_deadline
from holdfast.core.ports import Record, Runtime
from holdfast.core.tickets import (
    POLL_INTERVAL,
    POLL_INTERVAL_BEHIND,
    WAITER_LEASE,
    WOKEN_LEASE,
    Claim,
    Granted,
    LeaseGone,
    Live,
    LockInfo,
    Notification,
    TicketInfo,
    Waiting,
    first_blocker,
    make_ticket_info,
    process_text,
)
from holdfast.errors import LimitConflict

_NO_REGISTER = Register(0, "", 0.0)
_REAP_EACH = 256  # expired registers or records are dropped whenever their number is a multiple of this

# The second waiter polls often too: if the first is stopped when it is woken, the second must notice.
_POLL_OFTEN = 2


class MemoryBackend:
    """Locks of this process, which end with it."""

    guarantees = GUARANTEES
    lacks = LACKS
    warnings: tuple[str, ...] = ()  # a store in memory has no problems with which it still works
    liveness_fds: tuple[int, ...] = ()  # a process that dies takes its locks with it

    def __init__(self, url: str, port: MemoryPort, runtime: Runtime) -> None:
        self.url = url
        self._port = port
        self._runtime = runtime
        self._wakeups = port.wakeups

    async def try_acquire(self, claim: Claim, *, queue: bool, deadline: float) -> Granted | Waiting:
        sent = self._runtime.now()
        if queue:
            self._wakeups.expect(claim)
        outcome = await self._port.change(lambda store: self._try_acquire(store, claim, queue=queue), deadline=deadline)
        if isinstance(outcome, Waiting):
            return outcome
        self._wakeups.forget(claim)
        return Granted(outcome, lease_deadline(sent, claim.ttl, 0.0))

    async def try_acquire_all(self, claims: Sequence[Claim], *, deadline: float) -> list[Granted | Waiting]:
        sent = self._runtime.now()
        outcomes = await self._port.change(lambda store: self._try_acquire_all(store, claims), deadline=deadline)
        return [
            outcome if isinstance(outcome, Waiting) else Granted(outcome, lease_deadline(sent, claim.ttl, 0.0))
            for claim, outcome in zip(claims, outcomes, strict=False)
        ]

    async def wait(self, claim: Claim, until: float) -> None:
        await self._wakeups.wait(claim, until)

    async def release(self, claims: Sequence[Claim], *, deadline: float) -> list[bool]:
        for claim in claims:
            self._wakeups.forget(claim)
        return await self._port.change(
            lambda store: [self._release(store, claim) for claim in claims], deadline=deadline
        )

    async def renew(self, claims: Sequence[Claim], *, deadline: float) -> list[Live | LeaseGone]:
        sent = self._runtime.now()
        renewed = await self._port.change(
            lambda store: [self._renew(store, claim) for claim in claims], deadline=deadline
        )
        return [
            Live(lease_deadline(sent, claim.ttl, 0.0)) if is_live else LeaseGone()
            for claim, is_live in zip(claims, renewed, strict=True)
        ]

    async def adopt(self, nonce: str, claim: Claim, *, deadline: float) -> Granted | LeaseGone:
        sent = self._runtime.now()
        fence = await self._port.change(lambda store: self._adopt(store, nonce, claim), deadline=deadline)
        return Granted(fence, lease_deadline(sent, claim.ttl, 0.0)) if fence else LeaseGone()

    def intact(self, store: Hashable) -> bool:
        return True

    async def inspect(self, name: str, *, deadline: float) -> LockInfo:
        return await self._port.change(lambda store: self._inspect(store, name), deadline=deadline)

    async def locks(self, prefix: str, *, deadline: float) -> list[LockInfo]:
        infos = await self._port.change(
            lambda store: [self._inspect(store, name) for name in sorted(store.queues) if name.startswith(prefix)],
            deadline=deadline,
        )
        return [info for info in infos if info.holders or info.waiters]

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        return await self._port.change(lambda store: self._break(store, name, fence), deadline=deadline)

    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        return await self._port.change(
            lambda store: self._advance_register(store, name, number, nonce, keep), deadline=deadline
        )

    async def read_registers(self, names: Sequence[str], *, deadline: float) -> list[int]:
        return await self._port.change(
            lambda store: [store.process_state.registers.get(name, _NO_REGISTER).number for name in names],
            deadline=deadline,
        )

    async def swap_record(
        self, name: str, expected: str, record: Record | None, *, keep: float, deadline: float
    ) -> Record | None:
        return await self._port.change(
            lambda store: self._swap_record(store, name, expected, record, keep), deadline=deadline
        )

    async def close(self) -> None:
        self._wakeups.wake_all()  # the store itself belongs to the process

    def abandon(self) -> None:
        """There is nothing to drop: a forked child starts with empty stores."""

    # ── the steps, each run under the mutex ──────────────────────────────────────────────────────────────────────

    def _try_acquire(self, store: Store, claim: Claim, *, queue: bool) -> int | Waiting:
        now = self._runtime.now()
        entries = store.queues.setdefault(claim.name, {})
        mine = entries.get(claim.nonce)
        if not claim.exclusive:
            _check_limit(claim, entries, now)
        same_owner = _same_owner(entries, claim, now)
        blocker = None if same_owner else first_blocker(claim.limit, _live_ahead(entries, claim.nonce, now))
        if blocker is not None and not queue:
            return Waiting(POLL_INTERVAL, process_text(blocker.claim.info))
        if mine is None:
            store.process_state.last_number += 1
            mine = QueueEntry(claim, store.process_state.last_number, now, self._port.wake)
            entries[claim.nonce] = mine
        if blocker is None:
            if not mine.granted:
                mine.granted, mine.since = True, now
                if same_owner:
                    mine.fence = same_owner.fence
                    _move_first(entries, mine)
                elif mine.number < store.process_state.last_number:  # it has waited
                    # A lease that was adopted since has a greater fence than the number of this ticket.
                    store.process_state.last_number += 1
                    mine.fence = store.process_state.last_number
            mine.expires = now + claim.ttl
            if claim.owner:
                _wake_next(entries, now)  # waiting tickets of the same owner are granted with this one
            return mine.fence
        mine.expires = now + WAITER_LEASE
        _wake_next(entries, now)  # removing expired tickets may have unblocked others
        position = _position(entries, mine)
        poll_after = POLL_INTERVAL if position < _POLL_OFTEN else POLL_INTERVAL_BEHIND
        if position == 0:
            poll_after = max(0.0, min(poll_after, blocker.expires - now))
        return Waiting(poll_after, process_text(blocker.claim.info))

    def _try_acquire_all(self, store: Store, claims: Sequence[Claim]) -> list[int | Waiting]:
        outcomes: list[int | Waiting] = []
        for claim in claims:
            outcomes.append(self._try_acquire(store, claim, queue=False))
            if isinstance(outcomes[-1], Waiting):
                break
        return outcomes

    def _release(self, store: Store, claim: Claim) -> bool:
        now = self._runtime.now()
        entries = store.queues.get(claim.name, {})
        entry = entries.pop(claim.nonce, None)
        if entry is None:
            return False
        _wake_or_remove(store, claim.name, now)
        return entry.granted and entry.expires > now

    def _renew(self, store: Store, claim: Claim) -> bool:
        entry = store.queues.get(claim.name, {}).get(claim.nonce)
        if entry is None or not entry.granted:
            return False
        entry.expires = self._runtime.now() + claim.ttl
        return True

    def _adopt(self, store: Store, nonce: str, claim: Claim) -> int:
        """The fence; 0 if no granted ticket has this nonce."""
        now, entries = self._runtime.now(), store.queues.get(claim.name, {})
        mine = entries.get(claim.nonce)
        if mine is None:
            old = entries.get(nonce)
            if old is None or not old.granted or old.expires <= now:
                return 0
            store.process_state.last_number += 1
            mine = QueueEntry(claim, store.process_state.last_number, now, self._port.wake)
            mine.granted, mine.since, mine.fence = True, now, mine.number
            del entries[nonce]
            _move_first(entries, mine)
        mine.expires = now + claim.ttl
        return mine.fence

    def _break(self, store: Store, name: str, fence: int) -> bool:
        entries = store.queues.get(name, {})
        broken = [nonce for nonce, entry in entries.items() if entry.granted and entry.fence == fence]
        for nonce in broken:
            del entries[nonce]
        _wake_or_remove(store, name, self._runtime.now())
        return bool(broken)

    def _advance_register(self, store: Store, name: str, number: int, nonce: str, keep: float) -> bool:
        now = self._runtime.now()
        current = store.process_state.registers.get(name, _NO_REGISTER)
        if current.number >= number:
            return (current.number, current.nonce) == (number, nonce)
        if len(store.process_state.registers) % _REAP_EACH == 0:
            for other in [key for key, register in store.process_state.registers.items() if register.ends <= now]:
                del store.process_state.registers[other]
        store.process_state.registers[name] = Register(number, nonce, max(current.ends, now + keep))
        return True

    def _swap_record(self, store: Store, name: str, expected: str, record: Record | None, keep: float) -> Record | None:
        now, records = self._runtime.now(), store.process_state.records
        kept = records.get(name)
        current = kept.record if kept is not None and kept.ends > now else None
        nonce = "" if current is None else current.nonce
        if nonce != expected and (record is None or nonce != record.nonce):
            return current
        if record is None:
            records.pop(name, None)
            return None
        if len(records) % _REAP_EACH == 0:
            for other in [key for key, each in records.items() if each.ends <= now]:
                del records[other]
        records[name] = KeptRecord(record, now + keep)
        return record

    def _inspect(self, store: Store, name: str) -> LockInfo:
        now = self._runtime.now()
        live = [entry for entry in store.queues.get(name, {}).values() if entry.expires > now]
        infos = [(entry.granted, self._describe(entry, now)) for entry in live]
        return LockInfo(
            name,
            holders=tuple(info for granted, info in infos if granted),
            waiters=tuple(info for granted, info in infos if not granted),
        )

    def _describe(self, entry: QueueEntry, now: float) -> TicketInfo:
        return make_ticket_info(
            info=entry.claim.info,
            fence=entry.fence if entry.granted else None,
            agent=entry.claim.agent,
            since=self._runtime.wall() - (now - entry.since),
            remaining=entry.expires - now,
            exclusive=entry.claim.exclusive,
            limit=entry.claim.limit,
        )


def _live_ahead(entries: dict[str, QueueEntry], nonce: str, now: float) -> Iterator[QueueEntry]:
    """The live tickets before this one, in order. Expired ones are removed."""
    for other, entry in list(entries.items()):
        if other == nonce:
            return
        if entry.expires > now:
            yield entry
        else:
            del entries[other]


def _same_owner(entries: dict[str, QueueEntry], claim: Claim, now: float) -> QueueEntry | None:
    """A granted ticket of the same owner. This ticket is granted with it, even if others wait."""
    if not claim.owner:
        return None
    live = (entry for nonce, entry in entries.items() if nonce != claim.nonce and entry.expires > now)
    return next((entry for entry in live if entry.granted and entry.claim.owner == claim.owner), None)


def _move_first(entries: dict[str, QueueEntry], mine: QueueEntry) -> None:
    """Move a granted ticket before all waiters, because a waiter only checks the tickets before it."""
    nonce = mine.claim.nonce
    others = [(other, entry) for other, entry in entries.items() if other != nonce]
    entries.clear()
    entries[nonce] = mine
    entries.update(others)


def _check_limit(claim: Claim, entries: dict[str, QueueEntry], now: float) -> None:
    for entry in entries.values():
        if not entry.exclusive and entry.claim.limit != claim.limit and entry.expires > now:
            raise LimitConflict(
                lock=claim.name, ours=claim.limit, theirs=entry.claim.limit, holder=process_text(entry.claim.info)
            )


def _position(entries: dict[str, QueueEntry], mine: QueueEntry) -> int:
    """The number of waiters before it, at most _POLL_OFTEN."""
    waiting = (entry for entry in entries.values() if not entry.granted)
    return next(
        (number for number, entry in zip(range(_POLL_OFTEN), waiting, strict=False) if entry is mine), _POLL_OFTEN
    )


def _wake_next(entries: dict[str, QueueEntry], now: float) -> None:
    """Wake the waiters that the rule grants now, up to the first blocked one, and those whose owner holds the lock."""
    owners = {entry.claim.owner for entry in entries.values() if entry.granted and entry.expires > now} - {""}
    ahead: list[QueueEntry] = []
    is_blocked = False
    for entry in entries.values():
        if entry.expires <= now:
            continue
        if not entry.granted:
            is_blocked = is_blocked or first_blocker(entry.claim.limit, ahead) is not None
            if is_blocked and entry.claim.owner not in owners:
                if not owners:
                    return
                continue
            entry.expires = min(entry.expires, now + WOKEN_LEASE)
            entry.wake(Notification(entry.claim.nonce))
        ahead.append(entry)


def _wake_or_remove(store: Store, name: str, now: float) -> None:
    entries = store.queues.get(name)
    if entries:
        _wake_next(entries, now)
    else:
        store.queues.pop(name, None)
