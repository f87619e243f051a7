"""PostgreSQL: a standby is promoted after the primary has ended, with synchronous and asynchronous replication.

The URL names both servers with target_session_attrs=read-write, as docs/backends/postgresql.md describes. The old
primary is always stopped before the promotion, so there are never two primaries.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from packages.lab.scenarios.scenario import Deployment, Scenario
from tests.support.postgresql.servers import Server, Standby
from tests.support.processes import eventually
from tests.support.server_process import running

_DURABLE = ("fsync=on", "full_page_writes=on")
_LAG = 0.5  # seconds of writes that an asynchronous standby has not received


class _Pair:
    """A primary and its standby. After a promotion the old primary is replaced by a new standby on its port."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack, *, is_synchronous: bool) -> None:
        self._folder, self._stack, self._is_synchronous = folder, stack, is_synchronous
        self._numbers = itertools.count()
        self._primary = stack.enter_context(running(Server(folder / "first", settings=_DURABLE)))
        self._standby = self._add_standby(None)

    @property
    def url(self) -> str:
        hosts = f"127.0.0.1:{self._primary.port},127.0.0.1:{self._standby.port}"
        return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"

    def crash(self) -> Iterator[None]:
        """The primary ends without a checkpoint; an asynchronous standby has not received its last writes."""
        if not self._is_synchronous:
            sender = self._primary.value("SELECT pid FROM pg_stat_replication")
            os.kill(sender, signal.SIGSTOP)
            time.sleep(_LAG)
            os.kill(sender, signal.SIGKILL)  # it sends nothing more
        yield from self._promote_after(self._primary.crash)

    def switch(self) -> Iterator[None]:
        """The primary is shut down in order, which waits until the standby has all of it."""
        yield from self._promote_after(self._primary.shut_down)

    def _promote_after(self, end: Callable[[], None]) -> Iterator[None]:
        old, new = self._primary, self._standby
        end()
        new.rows("SELECT pg_promote(wait => false)")
        yield
        eventually(lambda: new.value("SELECT pg_is_in_recovery()") is False)
        self._primary = new
        self._standby = self._add_standby(old.port)

    def _add_standby(self, port: int | None) -> Server:
        standby = Standby(self._folder / f"standby-{next(self._numbers)}", self._primary, settings=_DURABLE)
        if port is not None:
            standby.port = port
        self._stack.enter_context(running(standby))
        if self._is_synchronous:
            self._primary.rows("ALTER SYSTEM SET synchronous_standby_names = '*'")
            self._primary.rows("SELECT pg_reload_conf()")
        state = "sync" if self._is_synchronous else "async"
        position = self._primary.value("SELECT pg_current_wal_lsn()::text")
        caught_up = "SELECT 1 FROM pg_stat_replication WHERE sync_state = %(state)s AND flush_lsn >= %(position)s"
        eventually(lambda: bool(self._primary.rows(caught_up, {"state": state, "position": position})))
        return standby


def _deploy(*, is_synchronous: bool) -> Callable[[Path], contextlib.AbstractContextManager[Deployment]]:
    @contextlib.contextmanager
    def deploy(folder: Path) -> Iterator[Deployment]:
        with contextlib.ExitStack() as stack:
            pair = _Pair(folder, stack, is_synchronous=is_synchronous)
            yield Deployment(pair.url, {"switch": pair.switch, "crash": pair.crash})

    return deploy


_TEXT = "the primary is shut down (`switch`) or crashes (`crash`), then the standby is promoted"

SCENARIOS = (
    Scenario(
        "postgresql-synchronous",
        f"PostgreSQL, a primary and a synchronous standby; {_TEXT}",
        _deploy(is_synchronous=True),
    ),
    Scenario(
        "postgresql-asynchronous",
        f"PostgreSQL, a primary and an asynchronous standby that lags by {_LAG:g} s at a crash; {_TEXT}",
        _deploy(is_synchronous=False),
    ),
)
