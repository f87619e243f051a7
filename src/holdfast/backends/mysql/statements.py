"""What the methods say to the server. {0}, {1}, … are values, {now} is the server's own clock."""

from __future__ import annotations

from holdfast.backends.mysql.port import Statement

# One statement, so that it is one decision: the first assignment takes the lock if it is free, all others follow from
# whose it is now. (They are made from left to right, by the manual.) The fence comes home in the statement's answer; it
# is 0 if the lock is another's.
TAKE = Statement(
    "take",
    "INSERT INTO holdfast_locks (id, name, method, drawn, nonce, fence, expires, since, agent, info) "
    "VALUES ({0}, {1}, {6}, {now}, {2}, LAST_INSERT_ID({now}), {now} + {3}, {now}, {4}, {5}) "
    "ON DUPLICATE KEY UPDATE "
    "nonce = IF((nonce IS NULL OR expires <= {now}) AND NOT tickets AND departed_until <= {now}, {2}, nonce), "
    "drawn = IF(nonce = {2}, GREATEST(drawn + 1, {now}), drawn), "
    "fence = IF(nonce = {2}, LAST_INSERT_ID(drawn), fence + LAST_INSERT_ID(0)), "
    "expires = IF(nonce = {2}, {now} + {3}, expires), "
    "since = IF(nonce = {2}, {now}, since), "
    "method = IF(nonce = {2}, {6}, method), "
    "agent = IF(nonce = {2}, {4}, agent), "
    "info = IF(nonce = {2}, {5}, info)",
    is_prepared=True,
    in_order=True,
)
INSERTED = 1  # row changed by TAKE; 2 stand for one that was there, by the manual
GIVE_BACK = Statement(
    "give_back",
    "UPDATE holdfast_locks SET nonce = NULL WHERE id = {0} AND nonce = {1} AND NOT tickets AND expires > {now}",
    is_prepared=True,
)
ENTER = Statement("enter", "CALL holdfast_enter({0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9})", in_order=True)
LEAVE = Statement("leave", "CALL holdfast_leave({0}, {1}, {2}, {3})")
BREAK = Statement("break", "CALL holdfast_break({0}, {1})")
REAP = Statement("reap", "CALL holdfast_reap({0})")
# Of many at once: {0} are the locks, {1} the nonces, {2} their ttl. A nonce is in one lock only. An end that is a bit
# later was set by somebody who renews the same lease just now, and stays; one that is much later is from before the
# clock was set back. What ends no earlier than it was set to is alive.
_PROLONG = "SET expires = IF(expires > @holdfast_end AND expires < @holdfast_end + 10000000, expires, @holdfast_end)"
_THEIRS = "WHERE id IN ({0}) AND nonce IN ({1})"
RENEW = Statement(
    "renew",
    "SET @holdfast_end = {now} + {2}; "  # noqa: S608 (of constants)
    f"UPDATE holdfast_locks {_PROLONG} {_THEIRS} AND expires > {{now}}; "
    f"UPDATE holdfast_tickets {_PROLONG} {_THEIRS} AND fence IS NOT NULL AND expires > {{now}}; "
    f"SELECT nonce FROM holdfast_locks {_THEIRS} AND expires >= @holdfast_end UNION ALL "
    f"SELECT nonce FROM holdfast_tickets {_THEIRS} AND fence IS NOT NULL AND expires >= @holdfast_end",
)
# Whether another is in the lock's own row; how many tickets are ahead, how many of those exclude others, how many wait;
# and whether the ticket itself is there.
LOOK = Statement(
    "look",
    "SELECT MAX(l.nonce <> {1} AND l.expires > {now}), COUNT(t.number), MAX(t.exclusive), "
    "SUM(t.number IS NOT NULL AND t.fence IS NULL), COUNT(m.number) "
    "FROM holdfast_locks l LEFT JOIN holdfast_tickets m ON m.id = l.id AND m.nonce = {1} "
    "LEFT JOIN holdfast_tickets t ON t.id = m.id AND t.number < m.number AND t.expires > {now} WHERE l.id = {0}",
)
_SEEN = (
    "SELECT l.name, l.fence, TRUE, 1, l.expires - {now}, l.since, l.agent, l.info, 0 AS place "
    "FROM holdfast_locks l WHERE l.nonce IS NOT NULL AND l.expires > {now} AND {condition} UNION ALL "
    "SELECT l.name, l.fence, l.exclusive, l.`limit`, l.expires - {now}, l.since, l.agent, l.info, l.number "
    "FROM holdfast_tickets l WHERE l.expires > {now} AND {condition} ORDER BY place"
)
INSPECT = Statement("inspect", _SEEN.replace("{condition}", "l.id = {0}"))
LOCKS = Statement("locks", _SEEN.replace("{condition}", "LEFT(CAST(l.name AS BINARY), LENGTH({0})) = {0}"))

# For the two plain methods: the state of a lock.
STATE = Statement(
    "state",
    "SELECT l.drawn, l.method, l.nonce, l.expires - {now}, l.info, EXISTS (SELECT 1 FROM holdfast_tickets t "
    "WHERE t.id = l.id AND t.expires > {now}) FROM holdfast_locks l WHERE l.id = {0}",
)
