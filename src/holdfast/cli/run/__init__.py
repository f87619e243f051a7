"""`holdfast run NAME COMMAND`: run a command only while the lock is held.

supervisor   acquires the lock, starts the command through the guard, forwards signals, releases the lock
guard        the process between them: ends the command in time, also if the supervisor is killed or stopped
terminal     the foreground process group of the terminal
linux        parent-death signal, adoption of orphans, an alarm that counts the time while the machine sleeps
"""

from __future__ import annotations

import argparse
import os
import sys

from holdfast.cli import options, statuses
from holdfast.core.names import LIMIT_MAX, TTL_MIN
from holdfast.core.periods import PERIOD_MIN, make_period
from holdfast.errors import ConfigurationError

TTL = 30.0

_DESCRIPTION = """\
Wait for the lock, run the command while it is held, release the lock, and
return the exit status of the command. The lease is renewed while the command
runs. The environment of the command has HOLDFAST_LOCK and HOLDFAST_FENCE.
Options after COMMAND belong to the command; the two dashes are optional.

If the lease cannot be renewed, the command's process group receives SIGTERM
--grace seconds before the lease ends, and SIGKILL just before it ends. If the
lease was broken or its store removed, SIGKILL is sent at once. If `holdfast
run` itself is killed or stopped, a guard process does the same.

With --once-per, the command runs at most once in each period, on all machines
together: for the same cron job on several machines. Later calls in the same
period are skipped with status 0. So are calls while the last run still holds
the lock, with the status for a busy lock, unless --timeout lets them wait.
Periods begin at multiples of their length in Unix time, moved by --offset.

With --once, NAME is a key, as of `client.once` in Python: the command runs once
for it on all machines, until --retention is over after its end. Later calls are
skipped with status 0. A command that fails may run again; with --after-error
remember it may not. If `holdfast run` died, or lost its lease, in the middle,
later calls end with status 121, or run again with --after-crash retry.
`holdfast once` shows and forgets the run of a key.

With --min-hold, a command that ends early does not release the lock at once:
the next client acquires it when this time is over. `holdfast run` itself ends
with the command.

With --revocable, `holdfast revoke NAME` also ends the command: it receives
SIGTERM, and SIGKILL if it has not ended after --grace seconds.
"""

_EPILOG = f"""\
TIME is a number of seconds, or text such as 500ms, 30s, 15m, 1h, 1d.

exit status:
  the status of the command; 128 + n if signal n ended it
  0    also if this period or key has had its run (--once-per, --once)
  {statuses.INTERRUPTED}  an earlier run of this key was interrupted, or is remembered as failed
  {statuses.REVOKED}  the lock was revoked (--revocable); the command was ended
  {statuses.LOST}  the lock was lost while the command ran; the command was ended
  {statuses.BUSY}  the lock was not acquired in time (--busy-status changes this)
  {statuses.UNAVAILABLE}  the store is not available
  126  the command cannot be executed
  127  the command was not found
  2    bad arguments

examples:
  holdfast run nightly-report ./report.sh --all
  holdfast run -n backup rsync -a /srv/ /backup/        # skip if it still runs
  holdfast run --semaphore 3 render ./render.sh         # at most three at once
  holdfast run --once-per 1d --offset 3h report ./report.sh     # from 03:00 UTC
  holdfast run --once import:2031-04-17 ./import.sh     # once for this day
"""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "run",
        help="run a command while a lock is held",
        usage="holdfast run [options] NAME [--] COMMAND [ARGUMENT ...]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", help="the lock's name")
    options.add_url(parser)
    waiting = parser.add_mutually_exclusive_group()
    waiting.add_argument("-n", "--no-wait", action="store_true", help="do not wait if the lock is busy")
    waiting.add_argument(
        "-w", "--timeout", type=options.seconds(), metavar="TIME", help="wait at most this long (default: no limit)"
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("-s", "--shared", action="store_true", help="hold the lock together with other --shared commands")
    kind.add_argument(
        "--semaphore",
        type=options.whole(1, LIMIT_MAX),
        metavar="N",
        help="hold the lock together with at most N - 1 other --semaphore N commands",
    )
    kind.add_argument(
        "--once-per",
        type=options.seconds(minimum=PERIOD_MIN),
        metavar="TIME",
        help="run the command at most once in each period of this length, on all machines together",
    )
    kind.add_argument("--once", action="store_true", help="run the command once for the key NAME, on all machines")
    parser.add_argument(
        "--retention",
        type=options.seconds(minimum=TTL_MIN),
        metavar="TIME",
        help="with --once: how long a run is remembered after its end (default: 1d)",
    )
    parser.add_argument(
        "--after-error", choices=("retry", "remember"), help="with --once: after a status other than 0 (default: retry)"
    )
    parser.add_argument(
        "--after-crash", choices=("raise", "retry", "skip"), help="with --once: after a death (default: raise)"
    )
    parser.add_argument(
        "--offset",
        type=options.seconds(),
        metavar="TIME",
        help="with --once-per: how long after a multiple of its length a period begins (default: 0)",
    )
    parser.add_argument(
        "--ttl",
        type=options.seconds(minimum=TTL_MIN),
        default=TTL,
        metavar="TIME",
        help="how long the lease lasts without a renewal (default: %(default)gs)",
    )
    parser.add_argument(
        "--grace",
        type=options.seconds(),
        metavar="TIME",
        help="time from SIGTERM to SIGKILL when the lease cannot be renewed (default: a third of the ttl)",
    )
    parser.add_argument(
        "--min-hold",
        type=options.seconds(),
        metavar="TIME",
        help="keep the lock for this time since it was acquired, also if the command ends earlier",
    )
    parser.add_argument("--revocable", action="store_true", help="end the command when `holdfast revoke` requests it")
    parser.add_argument(
        "--max-hold",
        type=options.seconds(minimum=TTL_MIN),
        metavar="TIME",
        help="kill the command after this time, and send SIGTERM before that",
    )
    parser.add_argument(
        "--meta",
        action="append",
        default=[],
        type=_pair,
        metavar="KEY=VALUE",
        help="shown by `holdfast show`; may be repeated",
    )
    parser.add_argument(
        "-E",
        "--busy-status",
        type=options.whole(0, 255),
        default=statuses.BUSY,
        metavar="N",
        help="exit status if the lock was not acquired in time (default: %(default)s)",
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="print when the wait begins and when the lock is acquired; add the time to each line",
    )
    parser.set_defaults(run=_run, parser=parser)


def _run(arguments: argparse.Namespace) -> int:
    if not arguments.command:
        arguments.parser.error("COMMAND is missing: holdfast run [options] NAME COMMAND")
    if not hasattr(os, "fork"):
        raise ConfigurationError(
            f"holdfast run needs fork() and process groups, which {sys.platform} does not have: acquire the lock "
            "inside the program"
        )
    if arguments.offset is not None and arguments.once_per is None:
        arguments.parser.error("argument --offset: needs --once-per")
    once = {
        option: value
        for option in ("retention", "after_error", "after_crash")
        if (value := getattr(arguments, option)) is not None
    }
    if once and not arguments.once:
        arguments.parser.error(f"argument --{next(iter(once)).replace('_', '-')}: needs --once")
    for option in ("revocable", "min_hold"):
        if arguments.once and getattr(arguments, option):
            arguments.parser.error(f"argument --{option.replace('_', '-')}: not allowed with argument --once")
    period = None if arguments.once_per is None else make_period(arguments.once_per, arguments.offset or 0)
    grace = arguments.ttl / 3 if arguments.grace is None else arguments.grace
    if grace > arguments.ttl / 2:
        arguments.parser.error(
            f"argument --grace: must be at most half the ttl ({arguments.ttl / 2:g} s), not {grace:g}"
        )
    if arguments.min_hold and arguments.max_hold and arguments.min_hold > arguments.max_hold:
        arguments.parser.error(f"argument --min-hold: must be at most --max-hold ({arguments.max_hold:g} s)")
    from holdfast.cli.run.supervisor import RunOptions, run

    return run(
        RunOptions(
            name=arguments.name,
            command=arguments.command,
            ttl=arguments.ttl,
            timeout=0.0 if arguments.no_wait or (period and arguments.timeout is None) else arguments.timeout,
            grace=grace,
            max_hold=arguments.max_hold,
            min_hold=arguments.min_hold,
            semaphore=arguments.semaphore,
            shared=arguments.shared,
            period=period,
            once=once if arguments.once else None,
            meta=dict(arguments.meta),
            busy_status=arguments.busy_status,
            revocable=arguments.revocable,
            verbose=arguments.verbose,
        ),
        lambda: options.open_client(arguments),
    )


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"must be KEY=VALUE, not {text!r}")
    return key, value
