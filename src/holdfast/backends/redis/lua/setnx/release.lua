-- Delete the key if it is this ticket's. Returns 1 if it was.
--
-- `unheard` is 1 if an enter of this ticket got no answer: it may still be on its way, on another connection. Then it is
-- remembered for a while that the ticket has left.
local nonce, unheard = unpack(ARGV)
if unheard == '1' then
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
