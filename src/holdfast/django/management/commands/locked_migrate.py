"""`manage.py locked_migrate`: migrate under a lock. Of several servers that start at once, one migrates."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand, CommandError

from holdfast.cli import options, statuses
from holdfast.cli.text import escape
from holdfast.core.events import Event
from holdfast.django.clients import client
from holdfast.errors import AcquireTimeout, BackendError, ConfigurationError, HoldfastError, LockLost, UsageError
from holdfast.runtimes.exits import exit_on
from holdfast.threads.locks import Lease

PROGRESS_INTERVAL = 10.0  # seconds between two lines about a wait


class Command(BaseCommand):
    """The command `migrate` of the project, with its options, under a lock."""

    help = (
        "Runs migrate under a lock: of several servers that start at once, one migrates. The others wait, and find "
        "nothing to do. All options of migrate are accepted."
    )
    requires_system_checks = ()  # migrate runs them

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        commands = get_commands()  # an app may replace migrate
        app = commands["migrate"]
        self._migrate = load_command_class(app, "migrate") if isinstance(app, str) else app

    def run_from_argv(self, argv: list[str]) -> None:
        with contextlib.suppress(UsageError):  # manage.py has a handler of its own
            exit_on(signal.SIGTERM)  # releases the lock, so that the next server need not wait until it expires
        super().run_from_argv(argv)

    def add_arguments(self, parser: Any) -> None:
        self._migrate.add_arguments(parser)
        parser.add_argument("--skip-checks", action="store_true", help="Skip system checks.")
        parser.add_argument(
            "--timeout",
            type=options.seconds(),
            metavar="TIME",
            help="wait for the lock at most this long, such as 90 or 15m (default: no limit)",
        )
        parser.add_argument("--lock-alias", default="default", metavar="ALIAS", help="the entry of HOLDFAST")
        parser.add_argument("--lock-name", metavar="NAME", help="the lock's name (default: django-migrate:DATABASE)")

    def handle(
        self, *args: Any, timeout: float | None, lock_alias: str, lock_name: str | None, **migrate_options: Any
    ) -> None:
        name = f"django-migrate:{migrate_options.get('database', 'default')}" if lock_name is None else lock_name
        write: Callable[[str], object] = self.stdout.write if migrate_options["verbosity"] else lambda _: None
        try:
            store = client(lock_alias)
            stop_reports = store.subscribe(_WaitReports(name, write))
            try:
                with store.lock(name, timeout=timeout) as lease:
                    self._check_before_each_migration(lease)
                    self._migrate.execute(*args, **migrate_options)
            finally:
                stop_reports()
        except HoldfastError as error:
            raise CommandError(str(error), returncode=_status(error)) from error

    def _check_before_each_migration(self, lease: Lease) -> None:
        """A server that has lost the lock starts no further migration: another server may migrate now."""
        report = getattr(self._migrate, "migration_progress_callback", None)
        if report is None:  # a replacement of migrate that has no such method
            return

        def check(action: str, *args: Any, **kwargs: Any) -> None:
            if action in {"apply_start", "unapply_start"}:
                lease.check()
            report(action, *args, **kwargs)

        self._migrate.migration_progress_callback = check


class _WaitReports:
    """Prints lines about a wait for the lock: when it begins, and every few seconds. A subscriber of events."""

    def __init__(self, name: str, write: Callable[[str], object]) -> None:
        self._name, self._write = name, write
        self._is_over = threading.Event()

    def __call__(self, event: Event) -> None:
        if event.lock != self._name:
            return
        if event.kind == "queued":
            holder = f", held by {event.reason}" if event.reason else ""
            self._write(escape(f"Waiting for lock {self._name!r}{holder}"))
            threading.Thread(target=self._report, daemon=True, name="wait-reports").start()
        elif event.kind in {"acquired", "not acquired"}:
            self._is_over.set()

    def _report(self) -> None:
        began = time.monotonic()
        while not self._is_over.wait(PROGRESS_INTERVAL):
            self._write(escape(f"Still waiting for lock {self._name!r} ({time.monotonic() - began:.0f} s)"))


def _status(error: HoldfastError) -> int:
    """The exit status, as `holdfast run` has it."""
    match error:
        case LockLost():
            return statuses.LOST
        case AcquireTimeout():
            return statuses.BUSY
        case BackendError() if not isinstance(error, ConfigurationError):
            return statuses.UNAVAILABLE
        case _:
            return statuses.USAGE
