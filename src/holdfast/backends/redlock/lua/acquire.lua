-- Give this node's vote to an attempt. Returns {'in', count}; {'late'} if the same ticket has tried again meanwhile;
-- {'wait', how many wait ahead here, remaining ms or -1, what the key says, the holder's line}.
--
-- `fence` is empty, or that of a lease which gets back a vote that this node has forgotten. `run` is the id of this very
-- process, as it has told the client. A process that has not counted here before may have forgotten what it counted: then
-- the clock is the floor.
local nonce, attempt, ttl, hint, fence, run, may_queue, command, channel, agent, info = unpack(ARGV)
local member = 'x:' .. nonce

local value = redis.call('GET', lock)
local theirs, their_attempt, their_count = vote_in(value)
if theirs == nonce then
  if their_attempt == attempt then
    return {'in', their_count}  -- asked before, and the answer was lost
  elseif tonumber(their_attempt) > tonumber(attempt) then
    return {'late'}
  end
elseif value then
  purge(value)
  local ahead = redis.call('ZRANK', queue, member)
  if may_queue == '1' then
    if not ahead then
      redis.call('ZADD', queue, now_us, member)
      ahead = redis.call('ZRANK', queue, member)
    end
    local line = nonce .. '\n\n' .. exact(now_us) .. '\n' .. command .. '\n' .. channel .. '\n' .. agent .. '\n' .. info
    redis.call('HSET', record, nonce, line)
    redis.call('ZADD', leases, now + WAITER_LEASE, member)
    redis.call('PEXPIRE', queue, WAITER_LEASE)
    redis.call('PEXPIRE', leases, WAITER_LEASE)
    keep(record, COUNT_IDLE)
  end
  local holder = theirs and redis.call('HGET', record, 'holder')
  return {'wait', ahead or 0, redis.call('PTTL', lock), string.sub(value, 1, 255), holder or ''}
end

local known = redis.call('HMGET', record, 'count', 'run')
local count = known[1] and known[1] + 1 or now_us
if known[2] ~= run then
  count = math.max(count, now_us)
end
count = exact(math.max(count, hint))
local shown = fence == '' and count or fence
local line = nonce .. '\n' .. shown .. '\n' .. exact(now_us) .. '\n\n\n' .. agent .. '\n' .. info
-- The count first, the vote last: should the server refuse one of these, nobody has the vote.
redis.call('HSET', record, 'count', count, 'run', run, 'holder', line)
redis.call('PEXPIRE', record, ttl + COUNT_IDLE)
forget_waiter(member)
redis.call('SET', lock, VOTE .. nonce .. ':' .. attempt .. ':' .. count, 'PX', ttl)
return {'in', count}
