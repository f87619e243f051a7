"""The methods of a PostgreSQL backend, called by a test directly: no engine, no keeper."""

from __future__ import annotations

from holdfast import url as urls
from holdfast.backends.postgresql.io import blocking
from holdfast.core.ports import Backend
from holdfast.core.tickets import Claim, Granted, Live, Waiting
from holdfast.runtimes.threads import ThreadRuntime, run_sync


class Driver:
    """The methods of a backend, each with a long deadline."""

    def __init__(self, url: str) -> None:
        self._runtime = ThreadRuntime()
        self.backend: Backend = blocking.open_backend(urls.parse(url), self._runtime)

    def tickets(self, names: list[str], owner: str = "") -> list[Claim]:
        about = (1, True, "main", '{"who": {"host": "h", "pid": 1}, "meta": {}}', 0.0, owner)
        return [Claim(name, self._runtime.nonce(), 30.0, *about) for name in sorted(names)]

    @property
    def until(self) -> float:
        return self._runtime.now() + 30.0

    def try_acquire(self, ticket: Claim, *, queue: bool = False) -> Granted | Waiting:
        return run_sync(self.backend.try_acquire(ticket, queue=queue, deadline=self.until))

    def try_acquire_all(self, tickets: list[Claim]) -> list[Granted | Waiting]:
        return [*run_sync(self.backend.try_acquire_all(tickets, deadline=self.until))]

    def release(self, tickets: list[Claim]) -> list[bool]:
        return [answer is True for answer in run_sync(self.backend.release(tickets, deadline=self.until))]

    def renew(self, ticket: Claim) -> bool:
        (answer,) = run_sync(self.backend.renew([ticket], deadline=self.until))
        return isinstance(answer, Live)

    @property
    def listens(self) -> bool:
        return bool(self.backend._port.subscriber.subscription(""))  # type: ignore[attr-defined]

    @property
    def remembered(self) -> set[str]:
        """The nonces of tickets of which the client keeps any state."""
        subscriber = self.backend._port.subscriber  # type: ignore[attr-defined]
        return {*(claim.nonce for claim in subscriber.wakeups.expected()), *subscriber._nonces}

    def held(self) -> list[str]:
        return [info.name for info in run_sync(self.backend.locks("", deadline=self.until))]

    def close(self) -> None:
        run_sync(self.backend.close())
