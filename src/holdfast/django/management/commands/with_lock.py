"""`manage.py with_lock NAME -- COMMAND`: run a command while a lock of the project is held, as `holdfast run` does."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from holdfast.cli import options, statuses
from holdfast.django.clients import make_client, ttl_of
from holdfast.errors import HoldfastError

GRACE_SHARE = 3  # the command gets SIGTERM this part of the ttl before the lease ends


class Command(BaseCommand):
    """Runs a program, or with --manage a management command, in a process of its own under a lock."""

    help = (
        "Waits for the lock, runs COMMAND in a process of its own while it is held, and returns its exit status. The "
        "command is ended before the lease ends, also if this process is killed. With --manage, COMMAND is a "
        "management command of this project."
    )
    requires_system_checks = ()  # the command may have its own

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("name", metavar="NAME", help="the lock's name")
        parser.add_argument(
            "command", metavar="-- COMMAND", nargs=argparse.REMAINDER, help="the command and its arguments, after --"
        )
        parser.add_argument("--manage", action="store_true", help="COMMAND is a management command, such as `report`")
        parser.add_argument("--lock-alias", default="default", metavar="ALIAS", help="the entry of HOLDFAST")
        parser.add_argument("-n", "--no-wait", action="store_true", help="do not wait if the lock is busy")
        parser.add_argument(
            "--timeout", type=options.seconds(), metavar="TIME", help="wait at most this long (default: no limit)"
        )

    def handle(self, *, name: str, command: list[str], manage: bool, lock_alias: str, **given: Any) -> None:
        words = command[1:] if command[:1] == ["--"] else command
        if not words:
            raise CommandError("COMMAND is missing: manage.py with_lock NAME -- COMMAND", returncode=statuses.USAGE)
        if not hasattr(os, "fork"):
            raise CommandError(f"with_lock needs fork() and process groups, which {sys.platform} does not have")
        from holdfast.cli.run.supervisor import RunOptions, run

        try:
            ttl = ttl_of(lock_alias)
            status = run(
                RunOptions(
                    name=name,
                    command=[*_manage(), *words] if manage else words,
                    ttl=ttl,
                    timeout=0.0 if given["no_wait"] else given["timeout"],
                    grace=ttl / GRACE_SHARE,
                    verbose=given["verbosity"] > 1,
                ),
                lambda: options.shared(make_client(lock_alias)),
            )
        except HoldfastError as error:
            raise CommandError(str(error), returncode=statuses.USAGE) from error
        sys.exit(status)


def _manage() -> list[str]:
    """The words that run a management command of this project."""
    program = sys.argv[0]
    if os.path.basename(program) == "__main__.py":  # python -m django
        return [sys.executable, "-m", "django"]
    return [sys.executable, program]
