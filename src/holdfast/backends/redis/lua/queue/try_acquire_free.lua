-- The fast path: the lock is free and no ticket waits, by far the most frequent case.
local nonce, kind, ttl, may_queue, about = unpack(ARGV)
local value = redis.call('GET', lock)
local others = kind == 'x' and not value and redis.call('EXISTS', leases, shared)
if others == 0 then
  local time = redis.call('TIME')
  local since = string.format('%s%06d', time[1], time[2])
  local fence, number = since, tonumber(since)
  local last = redis.call('HGET', record, 'fence')
  if last and tonumber(last) >= number then
    number = last + 1
    fence = string.format('%.0f', number)
  end
  local line = nonce .. '\n' .. fence .. '\n' .. since .. '\n' .. about
  -- The key is written last: if the server refuses an earlier write, no ticket is granted.
  redis.call('HSET', record, 'fence', fence, 'holder', line)
  redis.call('PEXPIRE', record, ttl + FENCE_IDLE)
  redis.call('SET', lock, OURS .. nonce, 'PX', ttl)
  return number
end

