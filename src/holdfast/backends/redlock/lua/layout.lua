-- The keys of a lock on one node; votes.lua describes them.
local lock, record, queue, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

