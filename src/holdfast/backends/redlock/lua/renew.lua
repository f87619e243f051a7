-- Extend the vote to the ttl from now. Returns 1 if this attempt has the vote, 0 if another ticket has it, 2 if it is
-- free.
--
-- A vote of an earlier attempt of the same ticket counts as free: that attempt failed, and its release may arrive
-- later.
local nonce, attempt, ttl, fence = unpack(ARGV)

local value = redis.call('GET', lock)
local theirs, their_attempt = vote_in(value)
if theirs == nonce and their_attempt == attempt then
  redis.call('PEXPIRE', lock, ttl)
  keep(record, ttl + COUNT_IDLE)
  if fence ~= '' then
    show_fence(nonce, fence)
  end
  return 1
end
return value and theirs ~= nonce and 0 or 2
