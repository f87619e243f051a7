-- Withdraw the vote from the attempts of a ticket up to this one, and wake the next waiter. Returns 1 if one of them
-- had it.
--
-- A release that arrives late must not affect a later attempt of the same ticket. `is_over` is 1 if the ticket will not
-- request the vote again, and 2 if in addition a request for the vote got no answer. That request may still arrive on
-- another connection, so the node remembers for WAITER_LEASE that the ticket was withdrawn.
local nonce, attempt, is_over = unpack(ARGV)

local value = redis.call('GET', lock)
local theirs, their_attempt = vote_in(value)
local had_it = theirs == nonce and tonumber(their_attempt) <= tonumber(attempt)
if had_it then
  redis.call('DEL', lock)
  value = false
end
local is_unwaited = redis.call('EXISTS', queue) == 0
if is_over == '2' then
  local clock = redis.call('TIME')
  local ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
  if is_unwaited then
    redis.call('ZREMRANGEBYSCORE', leases, '-inf', ms)
  end
  redis.call('ZADD', leases, ms + WAITER_LEASE, 'gone:' .. nonce)
  redis.call('PEXPIRE', leases, WAITER_LEASE)
end
-- No ticket waits: by far the most frequent case.
if is_unwaited then
  return had_it and 1 or 0
end

