-- Let in the first in line at once, if it has asked for that, is an exclusive one, and has looked a moment ago: its hint
-- has the fence, which spares it the way here and back. Not if nobody hears that.
--
-- A server without memory refuses none of this: a key has been deleted by then, and scripts are not stopped half-way.
if first and string.sub(first, 1, 2) == 'x:' then
  local its_nonce = string.sub(first, 3)
  local lapses = redis.call('ZSCORE', leases, first) or 0
  local its_line, last = unpack(redis.call('HMGET', record, its_nonce, 'fence'))
  local about, ttl = string.match(its_line or '', '^[^\n]*\n[^\n]*\n[^\n]*\n(%a+ (%d+)\n.*)')
  local time = redis.call('TIME')
  local now_us = time[1] * 1000000 + time[2]
  if about and lapses - now_us / 1000 > WAITER_LEASE - POLL_INTERVAL then
    local fence = string.format('%.0f', math.max((last or 0) + 1, now_us))
    local since = string.format('%.0f', now_us)
    redis.call('DEL', lock)
    redis.call('HSET', record, 'fence', fence, 'holder', table.concat({its_nonce, fence, since, about}, '\n'))
    redis.call('PEXPIRE', record, ttl + FENCE_IDLE)
    redis.call('SET', lock, OURS .. its_nonce, 'PX', ttl)
    if (publish(its_line, its_nonce .. ' ' .. fence) or 0) > 0 then
      redis.call('ZREM', queue, first)
      redis.call('ZREM', leases, first, 'turn:' .. first)
      redis.call('HDEL', record, its_nonce)
      return 1
    end
    redis.call('DEL', lock)
  end
end

