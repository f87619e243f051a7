"""The backend for threads. A folder has a file for each lock, the last fence in `fence`, and `guard`.

Every verb is one step under an exclusive flock on `guard`. So a step is atomic for other clients, and a file that has
expired can be removed without a race. The kernel unlocks `guard` if a process dies.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Hashable, Sequence
from typing import IO, Any, TypeVar

import holdfast
from holdfast.backends import api
from holdfast.backends.api import Claim, Granted, LeaseGone, Live, LockInfo, Waiting, lease_deadline
from holdfast_files.config import path_of
from holdfast_files.protocol.guarantees import GUARANTEES, LACKS

T = TypeVar("T")
POLL, RETRY = 0.02, 0.001  # seconds: between polls of a waiter; between attempts to lock the guard


class _Busy(Exception):
    """Another client is inside a step."""


class FilesBackend(api.OneByOne):
    """Exclusive locks without a queue."""

    guarantees, lacks = GUARANTEES, LACKS
    warnings: tuple[str, ...] = ()
    liveness_fds: tuple[int, ...] = ()  # the lease of a dead process ends with its ttl

    def __init__(self, address: api.Address, runtime: api.Runtime) -> None:
        self.url, self._runtime, self._folder = address.redacted, runtime, path_of(address)
        self._guards: set[IO[bytes]] = set()  # open, because a thread is inside a step
        with open("/proc/sys/kernel/random/boot_id") as file:
            self._boot = file.read().strip()

    async def try_acquire(self, claim: Claim, *, queue: bool, deadline: float) -> Granted | Waiting:
        def step() -> int | str:
            path, held = self._path(claim.name), self._read(self._path(claim.name))
            if held and held["nonce"] != claim.nonce:
                return api.process_text(held["info"])
            if held:  # the answer to an earlier request was lost
                self._replace(path, held | {"ttl": claim.ttl})
                return int(held["fence"])
            held = {key: getattr(claim, key) for key in ("name", "nonce", "ttl", "agent", "info")}
            held |= {"fence": self._next_fence(), "since": self._runtime.wall()}
            self._write(path, "x", held)  # O_EXCL
            return int(held["fence"])

        sent = self._runtime.now()
        outcome = await self._run(step, deadline)
        if isinstance(outcome, str):
            return Waiting(POLL * (0.5 + self._runtime.jitter()), outcome)
        return Granted(outcome, lease_deadline(sent, claim.ttl, 0.0))

    async def wait(self, claim: Claim, until: float) -> None:
        await self._runtime.sleep(max(0.0, until - self._runtime.now()))

    async def release(self, claims: Sequence[Claim], *, deadline: float) -> list[bool]:
        return await self._run(lambda: [self._remove(claim.name, "nonce", claim.nonce) for claim in claims], deadline)

    async def renew(self, claims: Sequence[Claim], *, deadline: float) -> list[Live | LeaseGone]:
        def renewed(claim: Claim) -> bool:
            held = self._read(self._path(claim.name))
            if not held or held["nonce"] != claim.nonce:
                return False
            self._replace(self._path(claim.name), held | {"ttl": claim.ttl})
            return True

        sent = self._runtime.now()
        are_live = await self._run(lambda: [renewed(claim) for claim in claims], deadline)
        deadlines = [lease_deadline(sent, claim.ttl, 0.0) for claim in claims]
        return [Live(end) if is_live else LeaseGone() for end, is_live in zip(deadlines, are_live, strict=True)]

    def intact(self, store: Hashable) -> bool:
        return True

    async def inspect(self, name: str, *, deadline: float) -> LockInfo:
        held = await self._run(lambda: self._read(self._path(name)), deadline, creates=False)
        return _lock_info(held) if held else LockInfo(name, (), ())

    async def locks(self, prefix: str, *, deadline: float) -> list[LockInfo]:
        def step() -> list[dict[str, Any] | None]:
            return [self._read(f"{self._folder}/{file}") for file in os.listdir(self._folder) if file.endswith(".lock")]

        infos = [_lock_info(held) for held in await self._run(step, deadline, creates=False) if held]
        return sorted(info for info in infos if info.name.startswith(prefix))

    async def break_lock(self, name: str, fence: int, *, deadline: float) -> bool:
        return await self._run(lambda: self._remove(name, "fence", fence), deadline, creates=False)

    async def advance_register(self, name: str, number: int, *, nonce: str, keep: float, deadline: float) -> bool:
        raise holdfast.Unsupported(backend=self.url, what="registers")  # LACKS has all primitives that need them

    async def read_registers(self, names: Sequence[str], *, deadline: float) -> list[int]:
        raise holdfast.Unsupported(backend=self.url, what="registers")

    async def close(self) -> None:
        """Nothing is open between two steps."""

    def abandon(self) -> None:
        for guard in self._guards:  # inherited from threads of the parent
            guard.close()

    async def _run(self, step: Callable[[], T], deadline: float, *, creates: bool = True) -> T:
        while True:
            try:
                return await self._call(lambda: self._attempt(step, creates=creates))
            except _Busy:
                if self._runtime.now() >= deadline:
                    raise holdfast.BackendUnavailable(backend=self.url, problem="the folder is always busy") from None
            await self._runtime.sleep(RETRY * (0.5 + self._runtime.jitter()))

    async def _call(self, attempt: Callable[[], T]) -> T:
        return attempt()

    def _attempt(self, step: Callable[[], T], *, creates: bool) -> T:
        try:
            if creates:
                os.makedirs(self._folder, mode=0o700, exist_ok=True)
            guard = open(f"{self._folder}/guard", "ab" if creates else "rb", buffering=0)  # noqa: SIM115 - closed below
        except OSError as error:
            kind = api.StoreMissing if isinstance(error, FileNotFoundError) else holdfast.BackendUnavailable
            raise kind(backend=self.url, problem=str(error)) from error
        with guard:
            self._guards.add(guard)
            try:
                fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return step()
            except BlockingIOError as error:
                raise _Busy from error
            except OSError as error:
                raise holdfast.OutcomeUnknown(backend=self.url, problem=str(error)) from error
            finally:
                # A child that was forked during the step has the descriptor too, so closing it would not unlock it.
                fcntl.flock(guard, fcntl.LOCK_UN)
                self._guards.discard(guard)

    # ── inside a step ────────────────────────────────────────────────────────────────────────────────────────────

    def _path(self, name: str) -> str:
        return f"{self._folder}/{hashlib.sha256(name.encode()).hexdigest()}.lock"

    def _read(self, path: str) -> dict[str, Any] | None:
        """The lock file; None if there is none. A file that has expired or is incomplete is removed."""
        try:
            with open(path) as file:
                held: dict[str, Any] = json.load(file)
        except FileNotFoundError:
            return None
        except ValueError:  # its writer died inside the step that created it, so no client has this lease
            held = {"boot": self._boot, "expires": 0.0}
        if held["boot"] != self._boot:  # the machine was restarted; the ttl starts again
            held = self._replace(path, held)
        if held["expires"] > _now():
            return held
        os.unlink(path)
        return None

    def _write(self, path: str, mode: str, held: dict[str, Any]) -> dict[str, Any]:
        held |= {"expires": _now() + held["ttl"], "boot": self._boot}
        with open(path, mode) as file:
            json.dump(held, file)
        return held

    def _replace(self, path: str, held: dict[str, Any]) -> dict[str, Any]:
        held = self._write(f"{self._folder}/new", "w", held)
        os.replace(f"{self._folder}/new", path)
        return held

    def _remove(self, name: str, key: str, value: object) -> bool:
        held = self._read(self._path(name))
        if held is None or held[key] != value:
            return False
        os.unlink(self._path(name))
        return True

    def _next_fence(self) -> int:
        """Greater than the last one, and than all of a folder that was lost, unless the wall clock was set back."""
        path, fence = f"{self._folder}/fence", int(self._runtime.wall() * 1_000_000)
        # There may be none, or a crash of the machine may have damaged it.
        with contextlib.suppress(FileNotFoundError, ValueError), open(path) as file:
            fence = max(fence, int(file.read()) + 1)
        with open(f"{self._folder}/new", "w") as file:
            file.write(str(fence))
        os.replace(f"{self._folder}/new", path)
        return fence


def _now() -> float:
    """A clock that all processes of the machine share, and that counts the time of a suspended machine."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _lock_info(held: dict[str, Any]) -> LockInfo:
    fields = {key: held[key] for key in ("info", "fence", "agent", "since")}
    ticket = api.make_ticket_info(**fields, remaining=held["expires"] - _now(), exclusive=True, limit=1)
    return LockInfo(held["name"], (ticket,), ())


open_backend = FilesBackend
