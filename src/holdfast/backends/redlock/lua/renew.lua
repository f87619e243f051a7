-- Let the vote last for the ttl from now. Returns 1 if this attempt has it, 0 if somebody else does, 2 if nobody does.
--
-- An earlier attempt of the ticket is nobody: it failed, and a release of its votes may be on its way here.
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
