-- The fast path: the lock is free and no ticket waits, by far the most frequent case. It is `grant_exclusive` of
-- try_acquire.lua without functions, because every call of a script creates its functions again.
local nonce, kind, ttl, may_queue, about = unpack(ARGV)
local value = redis.call('GET', lock)
if not value and kind == 'x' and redis.call('EXISTS', queue, waiters, shared) == 0 then
  local time = redis.call('TIME')
  local number = time[1] * 1000000 + time[2]
  local since = time[1] .. string.sub('00000' .. time[2], -6)
  local fence, kept = since, string.format('%.0f', number / 1000 + ttl + KEEP)
  local last = tonumber(redis.call('SET', watermark, since, 'GET') or 0) or 0
  if last >= number then
    number = last + 1
    fence = string.format('%.0f', number)
    redis.call('SET', watermark, fence)
  end
  redis.call('ZADD', index, kept, lock)
  local dead = time[2] % 16 == 0 and redis.call('ZRANGEBYSCORE', index, '-inf', '(' .. time[1] .. '000', 'LIMIT', 0, 32)
  if dead and dead[1] then
    redis.call('ZREM', index, unpack(dead))
  end
  redis.call('SET', lock, OURS .. nonce .. '\n' .. fence .. '\n' .. since .. '\n' .. kept .. '\n' .. about, 'PX', ttl)
  return number
end

