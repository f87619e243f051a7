-- The second fast path: one ticket of holdfast holds the lock, and this one joins the queue.
if kind == 'x' and may_queue == '1' and value then
  local holder, fence, start, kept, ttl_ms = string.match(value, '^holdfast:queue2:([^\n+][^\n]*)\n(%d+)\n(%d+)\n(%d+)[ %d]*\n%a*%??[ ]?(%d*)\n')
  local since, now
  if holder and holder ~= nonce then
    since, now = clock()
  end
  if now and kept - now >= WAITER_LEASE then
    local number = tonumber(fence) > tonumber(since) and fence or since
    local entry = 'x\n' .. number .. '\n' .. now + WAITER_LEASE .. '\n0\n' .. about
    if redis.call('HSETNX', waiters, nonce, entry) == 1 then
      local position = redis.call('RPUSH', queue, nonce)
      local remaining = -1
      if position == 1 then
        redis.call('PEXPIREAT', queue, kept)
        redis.call('PEXPIREAT', waiters, kept)
        -- The client needs the exact time only if the lease may end before its next poll.
        local estimate = ttl_ms ~= '' and start / 1000 + ttl_ms - now or 0
        remaining = estimate > POLL_INTERVAL and estimate or redis.call('PTTL', lock)
      end
      return {'wait', position - 1, remaining, string.sub(value, #OURS + 1), 0, number}
    end
  end
end

