"""`holdfast deadlocks`: list the cycles of threads and tasks that wait for each other."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from holdfast.cli import options, statuses
from holdfast.cli.help import STORE_READ, Commands, add_command
from holdfast.cli.lock_info import host_pid
from holdfast.cli.text import display_name, escape
from holdfast.core.tickets import TicketInfo
from holdfast.core.wait_graph import WaitEdge
from holdfast.errors import ConfigurationError
from holdfast.primitives import Primitive
from holdfast.runtimes.threads import run_sync

_DESCRIPTION = """\
List the deadlocks: threads and tasks that wait for each other in a cycle. A
cycle is listed if two readings show it.

Tickets of other programs and of older versions do not name their thread, so a
deadlock with them is not found. `holdfast break` ends one of its leases.
"""


def add_parser(commands: Commands[argparse.ArgumentParser]) -> None:
    parser = add_command(
        commands,
        "deadlocks",
        run=_run,
        summary="list threads and tasks that wait for each other",
        description=_DESCRIPTION,
        examples={
            "holdfast deadlocks": "the deadlocks of all locks in use",
            "holdfast deadlocks order:": "those of locks whose names begin with order:",
            "holdfast deadlocks --json": "for a program",
        },
        results={
            statuses.DONE: "there is no deadlock",
            statuses.NOT_DONE: "there is a deadlock",
            **STORE_READ,
        },
    )
    options.add_prefix(parser)
    options.add_url(parser)
    options.add_json(parser)


def _run(arguments: argparse.Namespace) -> int:
    from holdfast.cli.listing import find_locks

    with options.open_existing(arguments) as client:
        engine = client._engine  # noqa: SLF001 - not part of the public API
        if Primitive.DETECT_DEADLOCKS in engine.backend.lacks:
            raise ConfigurationError(
                f"{client.url} shows no deadlocks: {engine.backend.lacks[Primitive.DETECT_DEADLOCKS]}"
            )
        cycles = run_sync(engine.operators.wait_graph(find_locks(client, arguments.prefix))).cycles
        url = client.url
    if arguments.json:
        print(json.dumps([[_edge_as_dict(edge) for edge in cycle] for cycle in cycles], indent=2))
    else:
        for cycle in cycles:
            print(f"deadlock of {len(cycle)}:")
            print(*(f"  {_edge_as_text(edge)}" for edge in cycle), sep="\n")
        if not cycles:
            print(f"no deadlock ({escape(url)})", file=sys.stderr)
    return statuses.NOT_DONE if cycles else statuses.DONE


def _edge_as_dict(edge: WaitEdge) -> dict[str, Any]:
    from holdfast.monitor.status import ticket_as_dict

    return {"lock": edge.lock, "waiter": ticket_as_dict(edge.waiter), "blocker": ticket_as_dict(edge.blocker)}


def _edge_as_text(edge: WaitEdge) -> str:
    fence = edge.blocker.fence
    by, with_fence = ("queued before it:", "") if fence is None else ("held by", f", fence {fence}")
    return f"{_caller(edge.waiter)} waits for {display_name(edge.lock)}, {by} {_caller(edge.blocker)}{with_fence}"


def _caller(ticket: TicketInfo) -> str:
    return f"{host_pid(ticket)} ({escape(ticket.agent)})"
