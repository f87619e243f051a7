-- Take the vote back from a ticket's attempts up to this one, and wake who asked next. Returns 1 if one had the vote.
--
-- Only up to this one: a release that comes late, by a detour, must not hurt an attempt that came after it.
-- `is_over` is 1 when the ticket will not ask again.
local nonce, attempt, is_over = unpack(ARGV)

local value = redis.call('GET', lock)
local theirs, their_attempt = vote_in(value)
local had_it = theirs == nonce and tonumber(their_attempt) <= tonumber(attempt)
if had_it then
  redis.call('DEL', lock)
  redis.call('HDEL', record, 'holder')
  value = false
end
if is_over == '1' then
  forget_waiter('x:' .. nonce)
end
if not value and redis.call('EXISTS', queue) == 1 then
  purge(value)
  wake_next(value)
end
return had_it and 1 or 0
