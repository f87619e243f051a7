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
  value = false
end
-- Nobody waits: by far the most frequent case.
if redis.call('EXISTS', queue) == 0 then
  return had_it and 1 or 0
end

