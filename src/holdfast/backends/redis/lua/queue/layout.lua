-- The keys of a lock, in format 2. Redis runs one script at a time, so each script is atomic.
--
--   lock      string  "holdfast:queue2:<line>" while one ticket holds the lock; "holdfast:queue2:+@<owner>\n<fence>"
--                     while tickets of that owner do, who share the fence; "holdfast:queue2:+shared" while readers or
--                     permits do. Any other value belongs to another method, another format or another program. This
--                     key decides: a ticket that it does not name does not hold the lock.
--   queue     list    the nonces of the waiting tickets in their order.
--   waiters   hash    <nonce>: the entry of each ticket in `queue`; or "gone\n<until>" for a ticket that was withdrawn
--                     while a request had no answer. "!silent": the clients that did not respond, see below.
--   shared    zset    tickets that share the lock, by the end of their leases: readers or permits while `lock` is
--                     "+shared"; exclusive tickets while it names their owner. In any other case its members do not
--                     count. A member is "<kind>:<nonce>".
--   sharers   hash    <nonce>: the line of each ticket in `shared`.
--   watermark string  the greatest fence of all locks of the server, or of the slot on a Cluster. It never expires.
--   index     zset    the keys of the locks that may be in use, by the time when they are not any more. It covers the
--                     same locks as `watermark`.
--
-- The kind of a ticket is "x" for an exclusive one, "@<owner>" for an exclusive one with a named owner, "r" for a
-- reader, the semaphore's limit for a permit. In `shared` it is "x" also for a ticket with an owner.
--
-- The fields of a line are: nonce, fence, since (in microseconds), kept (only in `lock`), and the fields that the
-- client sends ("about"): the command that wakes it (with "?" if its client was not subscribed when it polled; followed
-- by a space and its ttl if the message may be the grant itself), the channel of its client, its thread or task, and
-- its info. The fields of an entry are: kind, number, lapses (when its waiter lease ends), turn, and about. The number
-- is at least the greatest fence of the lock so far and at least the time in microseconds when the ticket was queued.
-- The turn is 0; or the time until which a ticket that was woken for its turn must poll; or -1 if it did not.
--
-- A ticket that did not respond when it was its turn is skipped, and so are all tickets of its client that have not
-- polled since ("!silent": lines of a time and a channel). A skipped ticket keeps its place in the queue. It counts
-- again as soon as it polls.
--
-- `kept` is the time until which `queue` and `waiters` exist at least, if there are waiters, and the score of the lock
-- in `index`. It is later than the end of the lease by up to KEEP, so that most hand-overs and renewals need not write
-- these three keys.
--
-- Times are the server's own, in milliseconds unless noted.
local lock, queue, waiters, shared, sharers, watermark, index = unpack(KEYS)
local OURS, SEVERAL, SHARED = 'holdfast:queue2:', 'holdfast:queue2:+', 'holdfast:queue2:+shared'
local SILENT_CLIENTS = '!silent'

