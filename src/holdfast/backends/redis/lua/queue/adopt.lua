-- Replace the exclusive ticket `old`, which holds the lock, by a new ticket with a new fence. Returns the fence; 0 if
-- `old` does not hold the lock; -1 if the new ticket was released before, so that no client waits for this reply.
local old, nonce, ttl, about = unpack(ARGV)

local value = redis.call('GET', lock)
if is_held_by(nonce, value) then  -- a repeated request
  redis.call('PEXPIRE', lock, ttl)
  return tonumber(string.match(value, '^[^\n]*\n(%d+)\n'))
end
if not is_held_by(old, value) then
  return 0
end
if redis.call('HEXISTS', waiters, nonce) == 1 then
  return -1
end
local fence = take_fence(now_us)
local kept = now + ttl + KEEP
keep_until(kept)
hold(nonce, fence, now_us, kept, ttl, about)
return tonumber(fence)
