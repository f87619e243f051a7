-- Continues acquire_free.lua: the key exists.
local theirs, their_attempt, their_count = vote_in(value)
if theirs == nonce then
  if their_attempt == attempt then
    return {'granted', their_count}  -- requested before, and the reply was lost
  elseif tonumber(their_attempt) > tonumber(attempt) then
    return {'late'}
  end
  return give()
end

purge_waiters(channel)
local ahead = redis.call('ZRANK', queue, member)
if may_queue == '1' then
  if not ahead then
    redis.call('ZADD', queue, now_us, member)
    ahead = redis.call('ZRANK', queue, member)
  end
  local line = nonce .. '\n\n' .. exact(now_us) .. '\n' .. command .. '\n' .. channel .. '\n' .. agent .. '\n' .. info
  redis.call('HSET', record, nonce, line)
  redis.call('ZADD', leases, now + WAITER_LEASE, member)
  redis.call('ZREM', leases, 'turn:' .. member)
  redis.call('PEXPIRE', queue, WAITER_LEASE)
  redis.call('PEXPIRE', leases, WAITER_LEASE)
  keep(record, COUNT_IDLE)
end
local holder = theirs and redis.call('HGET', record, 'holder')
return {'wait', ahead or 0, redis.call('PTTL', lock), string.sub(value, 1, 255), holder or ''}
