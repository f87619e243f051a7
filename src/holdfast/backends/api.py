"""The contract for backends in other distributions: all names that they may import, besides those of `holdfast` itself.

docs/internals/writing-a-backend.md explains the names and how stable they are. The modules that define them are
internal: their other names, and the modules themselves, can change in any version.
"""

from __future__ import annotations

from holdfast.backends.worker_thread import WorkerThread
from holdfast.core.clock import lease_deadline
from holdfast.core.notifications import Wakeups
from holdfast.core.one_by_one import OneByOne
from holdfast.core.ports import (
    RECORD_MAX,
    AdoptsLeases,
    Backend,
    Event,
    KeepsRecords,
    Record,
    Runtime,
    StoreMissing,
)
from holdfast.core.tickets import (
    POLL_INTERVAL,
    POLL_INTERVAL_BEHIND,
    WAITER_LEASE,
    WOKEN_LEASE,
    Claim,
    Granted,
    LeaseGone,
    Live,
    LockInfo,
    Notification,
    TicketInfo,
    Waiting,
    first_blocker,
    make_ticket_info,
    process_text,
)
from holdfast.guarantees import Exclusion, FenceOrder, Guarantees, Order, Scope, Wake
from holdfast.primitives import Lacks, Primitive
from holdfast.url import Address
from holdfast.url_parts import Node, Option, choice, flag, integer, login_and_hosts, nodes_of, seconds, values_of

__all__ = [
    "POLL_INTERVAL",
    "POLL_INTERVAL_BEHIND",
    "RECORD_MAX",
    "WAITER_LEASE",
    "WOKEN_LEASE",
    "Address",
    "AdoptsLeases",
    "Backend",
    "Claim",
    "Event",
    "Exclusion",
    "FenceOrder",
    "Granted",
    "Guarantees",
    "KeepsRecords",
    "Lacks",
    "LeaseGone",
    "Live",
    "LockInfo",
    "Node",
    "Notification",
    "OneByOne",
    "Option",
    "Order",
    "Primitive",
    "Record",
    "Runtime",
    "Scope",
    "StoreMissing",
    "TicketInfo",
    "Waiting",
    "Wake",
    "Wakeups",
    "WorkerThread",
    "choice",
    "first_blocker",
    "flag",
    "integer",
    "lease_deadline",
    "login_and_hosts",
    "make_ticket_info",
    "nodes_of",
    "process_text",
    "seconds",
    "values_of",
]
