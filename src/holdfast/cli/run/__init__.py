"""`holdfast run NAME COMMAND`: a command that runs only while the lock is held.

supervisor   takes the lock, has the command started, passes signals on, gives the lock back
guard        the process between: ends the command in time, whatever becomes of the supervisor
terminal     whose turn it is on the terminal
kernel       parent-death signal, adoption of orphans, an alarm that goes on while the machine sleeps
"""

from __future__ import annotations

import argparse
import os
import sys

from holdfast.cli import options, statuses
from holdfast.core.names import LIMIT_MAX, TTL_MIN
from holdfast.errors import ConfigurationError

TTL = 30.0

_DESCRIPTION = """\
Wait for the lock, run the command while it is held, give the lock back, and
return the command's exit status. The lease is renewed all the while. The
command finds HOLDFAST_LOCK and HOLDFAST_FENCE in its environment. Options
behind COMMAND are the command's own; two dashes before it may be left out.

If the lease cannot be renewed, the command's process group gets SIGTERM
--grace seconds before the lease ends, and SIGKILL a moment before it ends. If
it was broken, or its store taken away, SIGKILL comes at once. If `holdfast
run` itself is killed or stopped, the same is done by a guard process.

With --revocable, `holdfast revoke NAME` ends the command as well: it gets
SIGTERM, and SIGKILL if it has not ended after --grace seconds.
"""

_EPILOG = f"""\
exit status:
  the command's own; 128 + n if signal n ended it
  {statuses.REVOKED}  somebody asked for the lock (--revocable); the command was ended
  {statuses.LOST}  the lock was lost while the command ran; it was ended
  {statuses.BUSY}  the lock was busy until the time was up (--busy-status changes this)
  {statuses.UNAVAILABLE}  the store could not be asked
  126  the command cannot be executed
  127  the command was not found
  2    bad arguments

examples:
  holdfast run nightly-report ./report.sh --all
  holdfast run -n backup rsync -a /srv/ /backup/        # skip if it still runs
  holdfast run --semaphore 3 render ./render.sh         # at most three at once
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
        "-w", "--timeout", type=options.seconds(), metavar="S", help="wait at most this long (default: for ever)"
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("-s", "--shared", action="store_true", help="with other --shared commands at the same time")
    kind.add_argument(
        "--semaphore",
        type=options.whole(1, LIMIT_MAX),
        metavar="N",
        help="with up to N - 1 other --semaphore N commands",
    )
    parser.add_argument(
        "--ttl",
        type=options.seconds(least=TTL_MIN),
        default=TTL,
        metavar="S",
        help="how long the lease lives without renewal (default: %(default)g)",
    )
    parser.add_argument(
        "--grace",
        type=options.seconds(),
        metavar="S",
        help="seconds from SIGTERM to SIGKILL when the lease cannot be renewed (default: a third of the ttl)",
    )
    parser.add_argument(
        "--revocable", action="store_true", help="end the command when `holdfast revoke` asks for the lock"
    )
    parser.add_argument(
        "--max-hold",
        type=options.seconds(least=TTL_MIN),
        metavar="S",
        help="kill the command after this long in any case, and send SIGTERM before that",
    )
    parser.add_argument(
        "--meta",
        action="append",
        default=[],
        type=_pair,
        metavar="KEY=VALUE",
        help="shown with the holder by `holdfast show`; may be given several times",
    )
    parser.add_argument(
        "-E",
        "--busy-status",
        type=options.whole(0, 255),
        default=statuses.BUSY,
        metavar="N",
        help="exit status if the lock was busy (default: %(default)s)",
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="say when the lock is waited for and taken; with the time in each line",
    )
    parser.set_defaults(run=_run, parser=parser)


def _run(arguments: argparse.Namespace) -> int:
    if not arguments.command:
        arguments.parser.error("no COMMAND: write it behind the name, holdfast run [options] NAME COMMAND")
    if not hasattr(os, "fork"):
        raise ConfigurationError(
            f"holdfast run needs fork() and process groups, which {sys.platform} does not have: take the lock inside "
            "the program"
        )
    grace = arguments.ttl / 3 if arguments.grace is None else arguments.grace
    if grace > arguments.ttl / 2:
        arguments.parser.error(
            f"argument --grace: must be at most half the ttl ({arguments.ttl / 2:g} s), not {grace:g}"
        )
    from holdfast.cli.run.supervisor import Plan, run

    return run(
        Plan(
            name=arguments.name,
            command=arguments.command,
            ttl=arguments.ttl,
            timeout=0.0 if arguments.no_wait else arguments.timeout,
            grace=grace,
            max_hold=arguments.max_hold,
            semaphore=arguments.semaphore,
            shared=arguments.shared,
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
