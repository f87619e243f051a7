-- Grant the lock at once to the first ticket in the queue, if it is exclusive, accepts hand-overs and has polled within
-- POLL_INTERVAL. The message carries the fence, which saves the new holder a round trip. If no connection receives the
-- message, the grant is undone.
--
-- A server that is out of memory refuses none of these writes: the script has deleted a key before, and Redis does not
-- stop a script half-way.
if first and string.sub(first, 1, 2) == 'x:' then
  local next_nonce = string.sub(first, 3)
  local lapses = redis.call('ZSCORE', leases, first) or 0
  local next_line, last = unpack(redis.call('HMGET', record, next_nonce, 'fence'))
  local about, ttl = string.match(next_line or '', '^[^\n]*\n[^\n]*\n[^\n]*\n(%a+ (%d+)\n.*)')
  local time = redis.call('TIME')
  local now_us = time[1] * 1000000 + time[2]
  if about and lapses - now_us / 1000 > WAITER_LEASE - POLL_INTERVAL then
    local fence = string.format('%.0f', math.max((last or 0) + 1, now_us))
    local since = string.format('%.0f', now_us)
    redis.call('DEL', lock)
    redis.call('HSET', record, 'fence', fence, 'holder', table.concat({next_nonce, fence, since, about}, '\n'))
    redis.call('PEXPIRE', record, ttl + FENCE_IDLE)
    redis.call('SET', lock, OURS .. next_nonce, 'PX', ttl)
    if (publish(next_line, next_nonce .. ' ' .. fence) or 0) > 0 then
      redis.call('ZREM', queue, first)
      redis.call('ZREM', leases, first, 'turn:' .. first)
      redis.call('HDEL', record, next_nonce)
      return 1
    end
    redis.call('DEL', lock)
  end
end

