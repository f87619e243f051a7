-- Give this node's vote to an attempt. Returns {'in', count}; {'late'} if the same ticket has tried again meanwhile, or has
-- left: then this request was late, and its client does not wait for the answer;
-- {'wait', how many wait ahead here, remaining ms or -1, what the key says, the holder's line}.
--
-- `fence` is empty, or that of a lease which gets back a vote that this node has forgotten. `run` is the id of this very
-- process, as it has told the client. A process that has not counted here before may have forgotten what it counted: then
-- the clock is the floor.
local nonce, attempt, ttl, hint, fence, run, may_queue, command, channel, agent, info = unpack(ARGV)
local member = 'x:' .. nonce

local function give()
  local time = redis.call('TIME')
  local since = string.format('%s%06d', time[1], time[2])  -- not as a number, which would be rounded
  local known = redis.call('HMGET', record, 'count', 'run')
  local count = known[1] and known[1] + 1 or tonumber(since)
  if known[2] ~= run then
    count = math.max(count, tonumber(since))
  end
  local before = redis.call('HGET', KEYS[6], 'count')
  count = string.format('%.0f', math.max(count, hint, (before or 0) + 1))
  if before then
    redis.call('HSET', KEYS[6], 'count', count)
  end
  local shown = fence == '' and count or fence
  -- The count first, the vote last: should the server refuse one of these, nobody has the vote.
  redis.call('HSET', record, 'count', count, 'run', run,
    'holder', nonce .. '\n' .. shown .. '\n' .. since .. '\n\n\n' .. agent .. '\n' .. info)
  redis.call('PEXPIRE', record, ttl + COUNT_IDLE)
  if attempt ~= '1' and redis.call('ZREM', queue, member) == 1 then  -- the first one has not been refused yet
    redis.call('ZREM', leases, member, 'turn:' .. member)
    redis.call('HDEL', record, nonce)
  end
  redis.call('SET', lock, VOTE .. nonce .. ':' .. attempt .. ':' .. count, 'PX', ttl)
  return {'in', count}
end

if redis.call('ZSCORE', leases, 'gone:' .. nonce) then
  return {'late'}
end

-- Free: by far the most frequent case, so it comes before all else.
local value = redis.call('GET', lock)
if not value then
  return give()
end

