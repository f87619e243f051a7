-- The fast paths: the lock is free and no ticket waits, by far the most frequent case; or one ticket of holdfast holds
-- it, and this ticket joins the queue.
local nonce, kind, ttl, may_queue, about = unpack(ARGV)
local value = redis.call('GET', lock)
if kind == 'x' and not value and redis.call('EXISTS', queue, waiters, shared) == 0 then
  local since, now = clock()
  local fence = take_fence(since)
  local kept = now + ttl + KEEP
  remove_dead_locks(since, now)
  redis.call('ZADD', index, kept, lock)
  hold(nonce, fence, since, kept, ttl, about)
  return tonumber(fence)
end
if kind == 'x' and may_queue == '1' and value then
  local holder, fence, start, kept, ttl_ms = string.match(value, '^holdfast:queue2:([^\n+][^\n]*)\n(%d+)\n(%d+)\n(%d+)\n%a*%??[ ]?(%d*)\n')
  local since, now
  if holder and holder ~= nonce then
    since, now = clock()
  end
  if now and kept - now >= WAITER_LEASE then
    local number = tonumber(fence) > tonumber(since) and fence or since
    if redis.call('HSETNX', waiters, nonce, table.concat({'x', number, now + WAITER_LEASE, 0, about}, '\n')) == 1 then
      local position = redis.call('RPUSH', queue, nonce)
      local remaining = -1
      if position == 1 then
        redis.call('PEXPIREAT', queue, kept)
        redis.call('PEXPIREAT', waiters, kept)
        -- If the lease may end before the next poll, it matters when. A renewal can only make it longer.
        local left = ttl_ms ~= '' and start / 1000 + ttl_ms - now or 0
        remaining = left > POLL_INTERVAL and left or redis.call('PTTL', lock)
      end
      return {'wait', position - 1, remaining, string.sub(value, #OURS + 1), 0, number}
    end
  end
end

