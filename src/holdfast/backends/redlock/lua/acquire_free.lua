-- Give this node's vote to an attempt. Returns
--   {'granted', count}
--   {'late'} if the same ticket has made a later attempt or was released: no client waits for this reply
--   {'wait', tickets ahead in this node's queue, remaining ms or -1, value of the key, the holder's line}
--
-- `fence` is empty, or the fence of a lease that gets back a vote which this node has forgotten. `count_min` is the
-- lowest count that the vote may have. `run` is the run_id of this process, as the client knows it. A process that has
-- not counted here before may have forgotten its count; then the clock is the lower bound.
local nonce, attempt, ttl, count_min, fence, run, may_queue, command, channel, agent, info = unpack(ARGV)
local member = 'x:' .. nonce

local function give()
  local time = redis.call('TIME')
  local since = string.format('%s%06d', time[1], time[2])  -- as text, because a number would be rounded
  local known = redis.call('HMGET', record, 'count', 'run')
  local count = known[1] and known[1] + 1 or tonumber(since)
  if known[2] ~= run then
    count = math.max(count, tonumber(since))
  end
  local before = redis.call('HGET', KEYS[5], 'count')
  count = string.format('%.0f', math.max(count, count_min, (before or 0) + 1))
  if before then
    redis.call('HSET', KEYS[5], 'count', count)
  end
  local shown = fence == '' and count or fence
  -- The vote is written last: if the server refuses an earlier write, no attempt has it.
  redis.call('HSET', record, 'count', count, 'run', run,
    'holder', nonce .. '\n' .. shown .. '\n' .. since .. '\n\n\n' .. agent .. '\n' .. info)
  redis.call('PEXPIRE', record, ttl + COUNT_IDLE)
  if attempt ~= '1' and redis.call('ZREM', queue, member) == 1 then  -- a first attempt is in no queue
    redis.call('ZREM', leases, member, 'turn:' .. member)
    redis.call('HDEL', record, nonce)
  end
  redis.call('SET', lock, VOTE .. nonce .. ':' .. attempt .. ':' .. count, 'PX', ttl)
  return {'granted', count}
end

if redis.call('ZSCORE', leases, 'gone:' .. nonce) then
  return {'late'}
end

-- The fast path: the lock is free, by far the most frequent case.
local value = redis.call('GET', lock)
if not value then
  return give()
end

