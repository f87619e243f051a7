-- Replace the exclusive ticket that holds the lock by another one, with a new fence. Returns the fence; 0 if that ticket
-- does not hold the lock; -1 if the new one was released before, by a client that waits for no reply.
local old, nonce, ttl, about = unpack(ARGV)

local value = redis.call('GET', lock)
if value == OURS .. nonce then  -- a repeated request
  redis.call('PEXPIRE', lock, ttl)
  return tonumber(string.match(redis.call('HGET', record, 'holder'), '^[^\n]*\n(%d+)\n'))
end
if value ~= OURS .. old then
  return 0
end
if redis.call('ZSCORE', leases, 'gone:' .. nonce) then
  return -1
end
local fence = next_number()
redis.call('HSET', record, 'fence', fence, 'holder', nonce .. '\n' .. fence .. '\n' .. exact(now_us) .. '\n' .. about)
redis.call('PEXPIRE', record, ttl + FENCE_IDLE)
redis.call('SET', lock, OURS .. nonce, 'PX', ttl)
return tonumber(fence)
