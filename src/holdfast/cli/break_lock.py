"""`holdfast break`: end leases by force. Leases are broken by fence, so a successor is never broken."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

from holdfast.cli import options, statuses
from holdfast.cli.help import STORE_READ, Commands, add_command
from holdfast.cli.lock_info import fences, no_target
from holdfast.cli.text import display_name
from holdfast.core.tickets import LockInfo, TicketInfo
from holdfast.errors import ConfigurationError
from holdfast.threads.client import Client

_DESCRIPTION = """\
Show the holders of a lock, ask for confirmation, and end their leases, or only
the lease with the fence of --fence. A lease that is granted after the holders
were shown is not ended.

WARNING: the holder notices the loss at its next renewal (every third of its
ttl) and may work until then, at the same time as the next holder. Make sure
that it has stopped, or that the protected resource rejects the older fence.
"""


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        "break",
        run=_run,
        summary="end a lease by force",
        description=_DESCRIPTION,
        examples={
            "holdfast break nightly-report": "show the holders, ask, break",
            "holdfast break pool --fence 1754989261000123": "one of several holders",
            "holdfast break nightly-report --yes": "do not ask, for scripts",
        },
        results={
            statuses.DONE: "every requested lease is broken",
            statuses.NOT_DONE: "a lease had already ended, the lock has no holder, or the answer was no",
            **STORE_READ,
        },
    )
    options.add_name(parser)
    parser.add_argument("--fence", type=options.whole(0), metavar="N", help="break only the lease with this fence")
    parser.add_argument(
        "--force",
        action="store_true",
        help="break a lease with several fences, which its client passes on between its threads or tasks",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask; required without a terminal")
    options.add_url(parser)
    options.add_json(parser)


def _run(arguments: argparse.Namespace) -> int:
    with options.open_existing(arguments) as client:
        info = client.inspect(arguments.name)
        targets = [holder for holder in info.holders if _is_target(holder, arguments.fence)]
        if targets:
            _print_to_stderr(*_describe_targets(info, targets))
            if not (arguments.yes or _confirm(len(targets))):
                _print_to_stderr("no lease was broken")
                targets = []
        else:
            _print_to_stderr(no_target(info, arguments.fence, "no lease was broken"))
        wanted = fences(targets)
        if wanted and arguments.fence is not None:
            wanted = [arguments.fence]  # a later one of a range
        return _break(client, info.name, wanted, force=arguments.force, as_json=arguments.json)


def _is_target(holder: TicketInfo, fence: int | None) -> bool:
    """Whether the holder is to be broken: each one without --fence, else one with this fence or a range that has it."""
    if fence is None or holder.fence is None:
        return fence is None
    return holder.fence <= fence <= (holder.last_fence or holder.fence)


def _describe_targets(info: LockInfo, targets: Sequence[TicketInfo]) -> list[str]:
    from holdfast.cli.show import describe_holder
    from holdfast.monitor.status import kind_text

    now = time.time()
    lines = [f"{display_name(info.name)} ({kind_text(info)})"]
    for holder in targets:
        lines += ["", *describe_holder(holder, info, now)]
    others = len(info.holders) - len(targets)
    return [*lines, *([f"({others} more, which will not be broken)"] if others else []), ""]


def _confirm(leases: int) -> bool:
    target = "this lease" if leases == 1 else f"these {leases} leases"
    return confirm(f"break {target}? The holder may keep working until its next renewal. [y/N] ", "no lease was broken")


def confirm(question: str, not_done: str) -> bool:
    """Ask for confirmation.

    Raises:
        ConfigurationError: stdin is not a terminal.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        raise ConfigurationError(f"cannot ask for confirmation without a terminal, {not_done}: use --yes")
    try:
        print(question, end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
    except KeyboardInterrupt:
        _print_to_stderr("")
        raise
    if not answer.endswith("\n"):
        _print_to_stderr("")
    return answer.strip().lower() in ("y", "yes")


def _break(client: Client, name: str, targets: Sequence[int], *, force: bool, as_json: bool) -> int:
    """Break the leases one by one. Print the result of each, also if the store fails on the way."""
    broken: list[int] = []
    gone: list[int] = []
    try:
        for fence in targets:
            is_broken = client.break_lock(name, fence, force=force)
            (broken if is_broken else gone).append(fence)
            if not as_json:
                outcome = "broken" if is_broken else "had already ended"
                print(f"{display_name(name)}, fence {fence}: {outcome}")
    finally:
        if as_json:
            print(json.dumps({"lock": name, "broken": broken, "gone": gone}, indent=2))
    return statuses.DONE if broken and not gone else statuses.NOT_DONE


def _print_to_stderr(*lines: str) -> None:
    print(*lines, sep="\n", file=sys.stderr)
