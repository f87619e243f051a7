"""The statements of the methods. {0}, {1}, … are values, {now} is the server's own clock."""

from __future__ import annotations

import functools

from holdfast.backends.mysql.port import Statement

# One statement, so that it is atomic: the first assignment acquires the lock if it is free, and all others depend on
# the holder after that. (The manual says that they are made from left to right.) The answer contains the fence as
# LAST_INSERT_ID; it is 0 if another ticket holds the lock.
_INTO = "INSERT INTO holdfast_locks (id, name, method, drawn, nonce, fence, expires, renewed, since, agent, info)"
_VALUES = "{0}, {1}, {6}, {now}, {2}, LAST_INSERT_ID({now}), {now} + {3}, {now}, {now}, {4}, {5}"
_ON_DUPLICATE = (
    "ON DUPLICATE KEY UPDATE "
    "nonce = IF((nonce IS NULL OR expires <= {now}) AND NOT tickets AND departed_until <= {now}, {2}, nonce), "
    "drawn = IF(nonce = {2}, GREATEST(drawn + 1, {now}), drawn), "
    "fence = IF(nonce = {2}, LAST_INSERT_ID(drawn), fence + LAST_INSERT_ID(0)), "
    "expires = IF(nonce = {2}, {now} + {3}, expires), "
    "renewed = IF(nonce = {2}, {now}, renewed), "
    "since = IF(nonce = {2}, {now}, since), "
    "method = IF(nonce = {2}, {6}, method), "
    "agent = IF(nonce = {2}, {4}, agent), "
    "info = IF(nonce = {2}, {5}, info)"
)
FAST_ACQUIRE = Statement("fast_acquire", f"{_INTO} VALUES ({_VALUES}) {_ON_DUPLICATE}", is_prepared=True, in_order=True)
INSERTED = 1  # the count of changed rows for an inserted row; the manual says 2 for an updated one
# For locks whose rows FAST_ACQUIRE has inserted: {0} are the locks, {1} the nonces, {2} the fences. An operator may
# have deleted the row of a lock that is in use. The lock is not free while it has tickets, so the acquire is undone.
# The nonces of the other tickets are returned. If this request arrives late, its client may have repeated the acquire:
# that grant has another fence, and stays. FAST_ACQUIRE does not read the tickets, because that adds 40 % to its time,
# also for old rows.
CONFIRM_NEW = Statement(
    "confirm_new",
    "UPDATE holdfast_locks l FORCE INDEX (PRIMARY) SET l.nonce = NULL, l.tickets = TRUE "
    "WHERE l.id IN ({0}) AND l.nonce IN ({1}) AND l.fence IN ({2}) "
    "AND EXISTS (SELECT 1 FROM holdfast_tickets t WHERE t.id = l.id); "
    "SELECT nonce FROM holdfast_locks WHERE id IN ({0}) AND nonce IN ({1})",
)
FAST_RELEASE = Statement(
    "fast_release",
    "UPDATE holdfast_locks SET nonce = NULL WHERE id = {0} AND nonce = {1} AND NOT tickets AND expires > {now}",
    is_prepared=True,
)


@functools.cache
def fast_acquire_all(count: int) -> Statement:
    """FAST_ACQUIRE for each of `count` locks in turn, up to the first that is held; one request, one transaction.

    {0} is the ttl, {1} the agent and {2} the info of all tickets; then {3}, {4}, … are id, name and nonce of each. One
    row is returned: the fences, and how many rows each has changed, with a comma after each number; 0 from the first
    lock that was not acquired.
    """
    begin = (
        "SET @holdfast_ttl = {0}, @holdfast_agent = {1}, @holdfast_info = {2}, "
        "@holdfast_goes_on = TRUE, @holdfast_fences = '', @holdfast_changes = '', @holdfast_now = {now}; "
        "START TRANSACTION"
    )
    note = (
        "SET @holdfast_fences = CONCAT(@holdfast_fences, IF(@holdfast_goes_on, LAST_INSERT_ID(), 0), ','), "
        "@holdfast_changes = CONCAT(@holdfast_changes, ROW_COUNT(), ','), "
        "@holdfast_goes_on = @holdfast_goes_on AND LAST_INSERT_ID() > 0, @holdfast_now = {now}"
    )
    acquire = f"{_INTO} SELECT {_VALUES} FROM DUAL WHERE @holdfast_goes_on {_ON_DUPLICATE}"  # noqa: S608 (of constants)
    shared = ("@holdfast_ttl", "@holdfast_agent", "@holdfast_info", "'unique'")
    sql = [begin]
    for first in range(3, 3 + 3 * count, 3):
        own = (f"{{{first + offset}}}" for offset in range(3))
        sql += [acquire.format(*own, *shared, now="@holdfast_now"), note]
    sql += ["COMMIT", "SELECT @holdfast_fences, @holdfast_changes"]
    return Statement("fast_acquire_all", "; ".join(sql), is_transaction=True)


# For several tickets: {0} are the locks, {1} the nonces. For each ticket that holds its lock, a row is returned: its
# nonce, and whether the release is complete. Where the lock has tickets, RELEASE is needed too. FORCE INDEX, because
# the server might scan a small table instead, and wait for rows that other clients have locked.
FAST_RELEASE_ALL = Statement(
    "fast_release_all",
    "SET @holdfast_now = {now}; START TRANSACTION; "
    "SELECT nonce, NOT tickets FROM holdfast_locks FORCE INDEX (PRIMARY) "
    "WHERE id IN ({0}) AND nonce IN ({1}) AND expires > @holdfast_now FOR UPDATE; "
    "UPDATE holdfast_locks FORCE INDEX (PRIMARY) SET nonce = NULL "
    "WHERE id IN ({0}) AND nonce IN ({1}) AND expires > @holdfast_now AND NOT tickets; "
    "COMMIT; SELECT nonce, FALSE FROM holdfast_tickets "
    "WHERE id IN ({0}) AND nonce IN ({1}) AND expires > @holdfast_now AND fence IS NOT NULL",
    is_transaction=True,
)
TRY_ACQUIRE = Statement(
    "try_acquire",
    "CALL holdfast_try_acquire({0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10})",
    in_order=True,
)
TRY_ACQUIRE_OWNED = Statement(
    "try_acquire_owned",
    "CALL holdfast_try_acquire_owned({0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8})",
    in_order=True,
)
RELEASE = Statement("release", "CALL holdfast_leave({0}, {1}, {2}, {3})")


@functools.cache
def release_all(count: int) -> Statement:
    """RELEASE for each of `count` tickets, in one request; four values and one row for each."""
    calls = (
        f"CALL holdfast_leave({{{at}}}, {{{at + 1}}}, {{{at + 2}}}, {{{at + 3}}})" for at in range(0, 4 * count, 4)
    )
    return Statement("release_all", "; ".join(calls))


# The holder with nonce {1} is replaced by the one with nonce {2}.
ADOPT = Statement(
    "adopt",
    "UPDATE holdfast_locks SET drawn = LAST_INSERT_ID(GREATEST(drawn + 1, {now})), fence = drawn, nonce = {2}, "
    "expires = {now} + {3}, renewed = {now}, since = {now}, agent = {4}, info = {5} "
    "WHERE id = {0} AND nonce = {1} AND expires > {now} "
    "AND NOT COALESCE(departed_until > {now} AND FIND_IN_SET({2}, departed), FALSE)",
)
HOLDER_FENCE = Statement(
    "holder_fence", "SELECT fence FROM holdfast_locks WHERE id = {0} AND nonce = {1} AND expires > {now}"
)
# For a client that passes its lease on between its callers: start the ttl again, and reserve {2} fences, with a new
# agent and info. If {3} is false, this is done only if the lock has no tickets. The answer contains the first fence as
# LAST_INSERT_ID; it is 0 if nothing was changed. A later `expires` was set by a concurrent renewal, or before the clock
# was set back, and stays.
EXTEND_TURN = Statement(
    "extend_turn",
    "UPDATE holdfast_locks SET fence = LAST_INSERT_ID(GREATEST(drawn + 1, {now})), drawn = fence + {2} - 1, "
    "renewed = IF(expires > {now} + {4}, renewed, {now}), expires = GREATEST(expires, {now} + {4}), since = {now}, "
    "agent = {5}, info = {6} WHERE id = {0} AND nonce = {1} AND expires > {now} AND ({3} OR NOT tickets)",
    is_prepared=True,
)
# The same client uses only the fence {2} from now on. A request that arrives late does not replace later fences. The
# answer contains the fence of the lease as LAST_INSERT_ID; it is 0 if the ticket does not hold the lock.
RENEW_ALONE = Statement(
    "renew_alone",
    "UPDATE holdfast_locks SET agent = IF({2} BETWEEN fence AND drawn, {4}, agent), "
    "info = IF({2} BETWEEN fence AND drawn, {5}, info), "
    "fence = LAST_INSERT_ID(IF({2} BETWEEN fence AND drawn, {2}, fence)), "
    "renewed = IF(expires > {now} + {3}, renewed, {now}), expires = GREATEST(expires, {now} + {3}) "
    "WHERE id = {0} AND nonce = {1} AND expires > {now}",
    is_prepared=True,
)
BREAK = Statement("break", "CALL holdfast_break({0}, {1})", reads=True)
REAP = Statement("reap", "CALL holdfast_reap({0})")
# For several leases: {0} are the locks, {1} the nonces, {2} the ttl of all. A nonce belongs to one lock only. An expiry
# that is a bit later was set by a concurrent renewal of the same lease, and stays. One that is much later is from
# before the clock was set back. A lease that expires no earlier than the new expiry is alive.
_PROLONG = (
    "SET expires = IF(expires > @holdfast_end AND expires < @holdfast_end + 10000000, expires, @holdfast_end), "
    "renewed = IF(expires = @holdfast_end, @holdfast_end - {2}, renewed)"
)
_THEIRS = "WHERE id IN ({0}) AND nonce IN ({1})"


def _renewal(name: str, change: str) -> Statement:
    return Statement(
        name,
        "SET @holdfast_end = {now} + {2}; "  # noqa: S608 (of constants)
        f"UPDATE holdfast_locks {change} {_THEIRS} AND expires > {{now}}; "
        f"UPDATE holdfast_tickets {change} {_THEIRS} AND fence IS NOT NULL AND expires > {{now}}; "
        f"SELECT nonce FROM holdfast_locks {_THEIRS} AND expires >= @holdfast_end UNION ALL "
        f"SELECT nonce FROM holdfast_tickets {_THEIRS} AND fence IS NOT NULL AND expires >= @holdfast_end",
    )


RENEW = _renewal("renew", _PROLONG)
# The last renewal of leases that stay for the rest of their min_hold. No other renewal is in flight.
RENEW_LAST = _renewal("renew_last", "SET expires = @holdfast_end, renewed = @holdfast_end - {2}")
# Columns: whether another ticket holds the lock in the row of the lock; how many tickets are queued before this one,
# how many of those are exclusive, how many of those wait; and whether this ticket exists.
_POLL = (
    "SELECT MAX(l.nonce <> {1} AND l.expires > {now}), COUNT(t.number), MAX(t.exclusive), "
    "SUM(t.number IS NOT NULL AND t.fence IS NULL), COUNT(m.number){more} "
    "FROM holdfast_locks l LEFT JOIN holdfast_tickets m ON m.id = l.id AND m.nonce = {1} "
    "LEFT JOIN holdfast_tickets t ON t.id = m.id AND t.number < m.number AND t.expires > {now} WHERE l.id = {0}"
)
POLL = Statement("poll", _POLL.replace("{more}", ""))
# Also: how many tickets of the same owner hold the lock.
_SAME_OWNER = (
    ", (SELECT COUNT(*) FROM holdfast_tickets k WHERE k.id = {0} AND k.nonce <> {1} AND k.fence IS NOT NULL "
    "AND k.expires > {now} AND CAST(k.owner AS BINARY) = CAST({2} AS BINARY))"
)
POLL_OWNED = Statement("poll_owned", _POLL.replace("{more}", _SAME_OWNER))
_TICKETS = (
    "SELECT l.name, l.fence, TRUE, 1, l.expires - {now}, l.since, l.agent, l.info, 0 AS place "
    "FROM holdfast_locks l WHERE l.nonce IS NOT NULL AND l.expires > {now} AND {condition} UNION ALL "
    "SELECT l.name, l.fence, l.exclusive, l.`limit`, l.expires - {now}, l.since, l.agent, l.info, l.number "
    "FROM holdfast_tickets l WHERE l.expires > {now} AND {condition} ORDER BY place"
)
INSPECT = Statement("inspect", _TICKETS.replace("{condition}", "l.id = {0}"), reads=True)
LOCKS = Statement(
    "locks", _TICKETS.replace("{condition}", "LEFT(CAST(l.name AS BINARY), LENGTH({0})) = {0}"), reads=True
)

# The state of a lock, for the two plain methods.
STATE = Statement(
    "state",
    "SELECT l.drawn, l.method, l.nonce, l.expires - {now}, l.info, EXISTS (SELECT 1 FROM holdfast_tickets t "
    "WHERE t.id = l.id AND t.expires > {now}), IF(l.renewed > {now}, l.renewed, NULL) "
    "FROM holdfast_locks l WHERE l.id = {0}",
)
# The clock was set back since the renewal at {1}: the lease now lasts as long from now as it did from that renewal. The
# comparison with {1} protects a concurrent renewal. {1} was read before the clock.
REBASE = Statement(
    "rebase",
    "UPDATE holdfast_locks SET expires = expires - renewed + {now}, renewed = {now} "
    "WHERE id = {0} AND renewed = {1} AND renewed > {now}",
)

# ── registers ────────────────────────────────────────────────────────────────────────────────────────────────────────

# Atomic, as FAST_ACQUIRE. The number in the answer is 1 if this call has advanced the register, now or in an earlier
# request with the same nonce.
ADVANCE_REGISTER = Statement(
    "advance_register",
    "INSERT INTO holdfast_marks (id, name, number, nonce, expires) "
    "VALUES ({0}, {1}, {2}, {3}, {now} + {4} * LAST_INSERT_ID(1)) "
    "ON DUPLICATE KEY UPDATE "
    "nonce = IF(number < {2}, {3}, nonce), "
    "expires = IF(nonce = {3} AND number <= {2}, GREATEST(expires, {now} + {4}) * LAST_INSERT_ID(1), "
    "expires + LAST_INSERT_ID(0)), "
    "number = GREATEST(number, {2})",
)
READ_REGISTERS = Statement("read_registers", "SELECT HEX(id), number FROM holdfast_marks WHERE id IN ({0})")
REAP_REGISTERS = Statement(
    "reap_registers",
    "DELETE FROM holdfast_marks WHERE expires <= {now} ORDER BY expires, id LIMIT {0}",
)

# ── records ──────────────────────────────────────────────────────────────────────────────────────────────────────────

SWAP_RECORD = Statement("swap_record", "CALL holdfast_swap_record({0}, {1}, {2}, {3}, {4}, {5})")
READ_RECORD = Statement(
    "read_record",
    "SELECT nonce, payload FROM holdfast_records WHERE id = {0} AND expires > {now}",
    reads=True,
    is_added=True,
)
REAP_RECORDS = Statement(
    "reap_records",
    "DELETE FROM holdfast_records WHERE expires <= {now} ORDER BY expires, id LIMIT {0}",
)
