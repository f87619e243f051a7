-- What a lock is on the server. Every script runs alone there, so each of its steps is atomic.
--
--   lock     string  "holdfast:queue:<nonce>" while that ticket is in, alone; "holdfast:queue:@<owner>" while tickets of
--                    that owner are; "holdfast:shared" while readers or permits are; anything else is another program's.
--                    This key is the truth: who it does not name is not in.
--   record   hash    fence: the last number drawn. holder: the exclusive ticket that is in, or was last; of an owner's,
--                    the first, with "@<owner>" for its nonce.
--                    limit: of the shared tickets. <nonce>: each ticket that waits, or is in with others.
--   queue    zset    waiting tickets by number. A member is "<kind>:<nonce>", the kind "x" for an exclusive ticket,
--                    "r" for a reader, a semaphore's limit for a permit.
--   leases   zset    the same members by the time when they lapse; "gone:<nonce>" for tickets that left unheard;
--                    "@<owner>:<nonce>" beside the "x:<nonce>" of each that has an owner.
--   shared   zset    members that are in with others, by the end of their leases: readers or permits, while `lock` says
--                    "shared"; exclusive tickets, while it names their owner. Else it counts for nothing.
--
-- Tickets of one owner let each other in, past the queue. To programs that know of no owners, their lock is held by one
-- exclusive ticket, and those that wait are exclusive ones like others.
--
-- Times are the server's own, in milliseconds. A ticket's line in the record is: nonce, fence (empty while it waits),
-- since (in microseconds), the command that wakes it (and after a space its ttl, if that may be the grant itself), the
-- channel, its thread or task, and its info.
local lock, record, queue, leases, shared = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local OURS, SHARED = 'holdfast:queue:', 'holdfast:shared'

