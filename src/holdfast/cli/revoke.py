"""`holdfast revoke`: request that holders release a lock. A holder that is revocable decides what to do."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

from holdfast.cli import options, statuses
from holdfast.cli.help import STORE_READ, Commands, add_command
from holdfast.cli.lock_info import fences, host_pid, no_target
from holdfast.cli.text import display_name
from holdfast.core.tickets import LockInfo, TicketInfo
from holdfast.threads.client import Client

_DESCRIPTION = """\
Request that the holders of a lock release it. With --fence, the request is for
the lease with this fence and for leases with smaller fences. A lease that is
granted later is not affected.

The request does not end a lease. A revocable holder receives it at its next
renewal, within a third of its ttl, and decides what to do. A holder is
revocable if it uses revocable=True, on_revoke= or `holdfast run --revocable`.
Use `holdfast break` for other holders.
"""
_POLL_INTERVAL = 0.1  # seconds between two checks whether the leases have ended


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        "revoke",
        run=_run,
        summary="request that the holder of a lock releases it",
        description=_DESCRIPTION,
        examples={
            "holdfast revoke nightly-report": "send the request, and print whether the holder is revocable",
            "holdfast revoke nightly-report --wait 60": "send the request, and wait until the lease has ended",
            "holdfast revoke pool --fence 1754989261000123": "one of several holders, and those with smaller fences",
        },
        results={
            statuses.DONE: "every holder received a request and is revocable; with --wait: every lease has ended",
            statuses.NOT_DONE: "the lock has no holder, a holder is not revocable, or a lease has not ended in time",
            **STORE_READ,
        },
    )
    options.add_name(parser)
    parser.add_argument(
        "--fence",
        type=options.whole(0),
        metavar="N",
        help="revoke the lease with this fence, and those with smaller fences",
    )
    parser.add_argument(
        "--wait",
        type=options.seconds(),
        metavar="TIME",
        help="wait until the leases have ended, at most this long: seconds, or text such as 5m",
    )
    options.add_url(parser)
    options.add_json(parser)


def _run(arguments: argparse.Namespace) -> int:
    with options.open_existing(arguments) as client:
        info = client.inspect(arguments.name)
        targets = _targets(info, arguments.fence)
        if targets:
            client.request_revoke(info.name, max(fences(targets)))
        else:
            print(_no_target(info, arguments.fence), file=sys.stderr)
        if not arguments.json:
            print(*(_result_line(info.name, holder) for holder in targets), sep="\n", end="\n" if targets else "")
        ended = None if arguments.wait is None else _wait_until_ended(client, info.name, targets, arguments)
    if arguments.json:
        print(json.dumps({"lock": info.name, "asked": [_as_dict(holder, ended) for holder in targets]}, indent=2))
    if ended is not None:
        return statuses.DONE if targets and ended.issuperset(fences(targets)) else statuses.NOT_DONE
    return statuses.DONE if targets and all(holder.revocable for holder in targets) else statuses.NOT_DONE


def _targets(info: LockInfo, fence: int | None) -> list[TicketInfo]:
    """Return the holders that a request for this fence applies to."""
    held = [holder for holder in info.holders if holder.fence]  # a lease without a fence cannot be revoked
    if fence is None:
        return held
    return [holder for holder in held if fence in fences(held) and (holder.fence or 0) <= fence]


def _no_target(info: LockInfo, fence: int | None) -> str:
    if info.holders and fence is None:
        return f"{display_name(info.name)} is held by {host_pid(info.holders[0])}, which cannot receive requests"
    return no_target(info, fence, "no request was sent")


def _result_line(name: str, holder: TicketInfo) -> str:
    note = "" if holder.revocable else ", which is not revocable"
    return f"{display_name(name)}, fence {holder.fence}: release requested from {host_pid(holder)}{note}"


def _wait_until_ended(
    client: Client, name: str, targets: Sequence[TicketInfo], arguments: argparse.Namespace
) -> set[int]:
    """Wait until the leases have ended. Return the fences of those that have."""
    ended: set[int] = set()
    end = time.monotonic() + arguments.wait
    while True:
        held = set(fences(client.inspect(name).holders))
        for fence in fences(targets):
            if fence not in held and fence not in ended:
                ended.add(fence)
                if not arguments.json:
                    print(f"{display_name(name)}, fence {fence}: ended", flush=True)
        now = time.monotonic()
        if ended.issuperset(fences(targets)) or now >= end:
            break
        time.sleep(min(_POLL_INTERVAL, end - now))
    for fence in sorted(set(fences(targets)) - ended):
        print(f"{display_name(name)}, fence {fence}: still held after {arguments.wait:g} s", file=sys.stderr)
    return ended


def _as_dict(holder: TicketInfo, ended: set[int] | None) -> dict[str, object]:
    return {
        "fence": holder.fence,
        "host": holder.host,
        "pid": holder.pid,
        "program": holder.program,
        "listens": holder.revocable,
        "over": None if ended is None else holder.fence in ended,
    }
