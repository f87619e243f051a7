-- Delete the key if it belongs to this ticket. Returns 1 if it did.
--
-- `unanswered` is 1 if a try_acquire of this ticket got no answer. That request may still arrive on another connection,
-- so the server remembers for WAITER_LEASE that the ticket was withdrawn.
local nonce, unanswered = unpack(ARGV)
if unanswered == '1' then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', now)
  redis.call('ZADD', KEYS[4], now + WAITER_LEASE, 'gone:' .. nonce)
  redis.call('PEXPIRE', KEYS[4], WAITER_LEASE)
end
local mine = 'holdfast:setnx:' .. nonce .. ':'
local value = redis.call('GET', KEYS[1])
if value and string.sub(value, 1, #mine) == mine then
  return redis.call('DEL', KEYS[1])
end
return 0
