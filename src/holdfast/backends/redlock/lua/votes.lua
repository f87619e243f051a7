-- One node's part in a lock that a majority of nodes decides on. The keys are those of the queue (see its layout.lua),
-- of which `lock`, `record`, `queue` and `leases` are used:
--
--   lock     string  "holdfast:redlock:<nonce>:<attempt>:<count>": the ticket that has this node's vote
--   record   hash    count: the highest number that this node has given or heard of; it never goes back.
--                    run: the id of the process that has counted. holder: who has the vote or had it last, for people.
--   queue    zset    tickets that were refused here, by the time when they first asked: whom to wake after a release.
--                    They may overtake each other; the order is a hint.
--   leases   zset    the same tickets by the time when they lapse; "gone:<nonce>" for tickets that have left while a
--                    request of theirs had no answer.
--
-- The sixth key, where a script has one, is the record as earlier versions named it. While one of them counts there, both
-- counts go on together, so that fences grow whichever version is next.
local VOTE = 'holdfast:redlock:'

-- Whose vote a value of the lock's key is: nonce, attempt and count, all as text; nothing if it is not one.
local function vote_in(value)
  if value then
    return string.match(value, '^holdfast:redlock:([^:]*):([^:]*):([^:]*)$')
  end
end

