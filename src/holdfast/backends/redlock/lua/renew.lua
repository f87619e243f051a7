-- Let the vote last for the ttl from now. Returns 1 if the ticket has it, 0 if somebody else does, 2 if nobody does.
local nonce, ttl, fence = unpack(ARGV)

local value = redis.call('GET', lock)
if vote_in(value) == nonce then
  redis.call('PEXPIRE', lock, ttl)
  keep(record, ttl + COUNT_IDLE)
  if fence ~= '' then
    show_fence(nonce, fence)
  end
  return 1
end
return value and 0 or 2
