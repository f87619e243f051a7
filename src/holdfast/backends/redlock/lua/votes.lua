-- One node's part in a lock that a majority of nodes decides on. Its keys:
--
--   lock     string  "holdfast:redlock:<nonce>:<attempt>:<count>": the attempt that has this node's vote.
--   record   hash    count: the highest number that this node has given or received; it never decreases.
--                    run: the run_id of the process that counted. holder: the line of the ticket that has the vote or
--                    had it last, for `inspect`. <nonce>: the line of each ticket that waits.
--   queue    zset    tickets that this node refused, by the time of their first request. They are woken after a
--                    release. The order is not guaranteed: a later ticket may win the majority first.
--   leases   zset    the same tickets by the time when they expire; "gone:<nonce>" for tickets that were withdrawn
--                    while a request of theirs had no answer; "turn:<member>" for a ticket that was woken for its turn,
--                    by the time until which it must poll.
--
-- A member of `queue` is "x:<nonce>". The fields of a line are: nonce, fence (empty while it waits), since (in
-- microseconds), the command that wakes it, the channel of its client, its thread or task, and its info. A ticket with
-- a waiter lease and without a queue entry was skipped, because its client did not respond when it was its turn; it
-- returns to the queue as soon as it polls.
--
-- The fifth key, if a script has one, is the record under its name in earlier versions. While it exists, both counts
-- are raised together, so that fences grow whichever version is granted next.
local VOTE = 'holdfast:redlock:'

-- The nonce, attempt and count in a value of the lock's key, as text; nil if it is not a vote.
local function vote_in(value)
  if value then
    return string.match(value, '^holdfast:redlock:([^:]*):([^:]*):([^:]*)$')
  end
end

