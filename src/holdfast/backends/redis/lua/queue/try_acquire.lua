-- Take the lock, or a place in its queue, or keep the place already taken.
--
-- Returns the fence if it is in. Else {'wait', how many wait ahead, the obstacle's remaining ms or -1, its line, 1 if
-- foreign or 2 if it is a ticket whose turn it is, the number of its place or ''}; {'limit', kind, line} if others use another limit; {'method', value} if
-- another method is in use; {'gone'} if this very ticket has left before.
local owner, member = owner_in(kind), member_of(kind, nonce)
if owner then
  kind = 'x'
end

local function line(who, fence, since)
  return who .. '\n' .. fence .. '\n' .. since .. '\n' .. about
end

-- Fence and holder first, the key last: should the server refuse one of these, nobody is in.
local function go_in_alone()
  local fence = next_number()
  redis.call('HSET', record, 'fence', fence, 'holder', line(nonce, fence, exact(now_us)))
  redis.call('PEXPIRE', record, ttl + FENCE_IDLE)
  redis.call('SET', lock, OURS .. nonce, 'PX', ttl)
  return tonumber(fence)
end

local function go_in_with_others()
  local fence = draw()
  redis.call('HSET', record, 'limit', kind, nonce, line(nonce, fence, exact(now_us)))
  keep(record, ttl + FENCE_IDLE)
  redis.call('ZADD', shared, now + ttl, member)
  end_with_last(SHARED)
  return tonumber(fence)
end

-- Of an owner's tickets the first draws the fence, which is that of all who come while one of them is in: also of one
-- that comes once more, because kin may have heard of that fence by now. The first wakes those of them that wait; later
-- ones need not.
local function go_in_with_kin()
  local holder = value == SEVERAL .. owner and redis.call('HGET', record, 'holder')
  local fence = holder and string.match(holder, '^' .. owner .. '\n(%d+)\n')
  local is_first = not fence
  if is_first then
    fence = draw()
    redis.call('HSET', record, 'holder', line(owner, fence, exact(now_us)))
  end
  redis.call('HSET', record, nonce, line(nonce, fence, exact(now_us)))
  keep(record, ttl + FENCE_IDLE)
  redis.call('ZADD', shared, now + ttl, member)
  end_with_last(SEVERAL .. owner)
  if is_first then
    for _, other in ipairs(redis.call('ZRANGE', leases, 0, -1)) do
      local waiting = 'x:' .. nonce_of(other)
      if kind_of(other) == owner and redis.call('ZSCORE', queue, waiting) then
        wake(waiting)
      end
    end
  end
  return tonumber(fence)
end

-- When all who waited have died, the set of their leases ends by itself, and their lines are left in the record.
local function forget_lines()
  local kept = {fence = true, holder = true, limit = true}
  for _, other in ipairs(redis.call('ZRANGE', shared, 0, -1)) do
    kept[nonce_of(other)] = true
  end
  for _, field in ipairs(redis.call('HKEYS', record)) do
    if not kept[field] then
      redis.call('HDEL', record, field)
    end
  end
end

-- In already, by a request whose answer was lost: nobody has heard of that fence, and it may be from before a failover.
if value == OURS .. nonce then
  return go_in_alone()
end

-- The next in line, and it is free: what comes of most who have waited. Where there are leases of those who wait and
-- nothing else, nobody is in with others.
if others == 1 and redis.call('ZRANGE', queue, 0, 0)[1] == member then
  redis.call('ZREM', queue, member)
  redis.call('ZREM', leases, member, 'turn:' .. member)
  redis.call('HDEL', record, nonce)
  return go_in_alone()
end

-- A waiter that polls is alive. If it has not lapsed yet, it keeps its place in the queue, or is back in it.
redis.call('ZADD', leases, 'XX', now + WAITER_LEASE, member)
redis.call('ZREM', leases, 'turn:' .. member)
value = purge(value, channel_in('\n\n\n' .. about))
if value and value ~= 'holdfast:shared' and string.sub(value, 1, 9) == 'holdfast:' and string.sub(value, 1, #OURS) ~= OURS then
  return {'method', value}
end
local place = redis.call('ZRANK', queue, member)
if not place then
  if redis.call('ZSCORE', leases, 'gone:' .. nonce) then
    return {'gone'}
  end
  local line = redis.call('ZSCORE', leases, member) and redis.call('HGET', record, nonce)
  local number = string.match(line or '', '^[^\n]*\n\n(%d+)\n')
  if number then
    redis.call('ZADD', queue, number, member)
    place = redis.call('ZRANK', queue, member)
  end
end

-- Shared tickets agree on their limit. The record remembers which; where it names another one, look whether anybody
-- with that is still there.
if kind ~= 'x' and redis.call('HGET', record, 'limit') ~= kind then
  for _, key in ipairs({shared, queue}) do
    for _, other in ipairs(redis.call('ZRANGE', key, 0, -1)) do
      local theirs = kind_of(other)
      if theirs ~= 'x' and theirs ~= kind and other ~= member then
        return {'limit', theirs, redis.call('HGET', record, nonce_of(other)) or ''}
      end
    end
  end
end

-- The rule: in when fewer than the limit are ahead, and none of those is exclusive; or when kin are in.
if not value or value == SHARED then
  wake_next(value, member)
  place = place and redis.call('ZRANK', queue, member)
end
local before = place or redis.call('ZCARD', queue)
local obstacle  -- the member in the way, or true: what the lock's key says
if owner and value == SEVERAL .. owner then
  obstacle = nil  -- whoever waits
elseif kind == 'x' then
  if value then
    obstacle = true
  elseif before > 0 then
    obstacle = redis.call('ZRANGE', queue, 0, 0)[1]
  end
elseif value and value ~= SHARED then
  obstacle = true
elseif not redis.call('ZSCORE', shared, member) then
  if kind ~= 'r' and redis.call('ZCARD', shared) + before >= tonumber(kind) then
    obstacle = value and true or redis.call('ZRANGE', queue, 0, 0)[1]
  elseif before > 0 then
    for _, other in ipairs(redis.call('ZRANGE', queue, 0, before - 1)) do
      if kind_of(other) == 'x' then
        obstacle = other
        break
      end
    end
  end
end

if not obstacle then
  if place then
    redis.call('ZREM', queue, member)
    redis.call('ZREM', leases, member, (owner or kind) .. ':' .. nonce)
  end
  if owner then
    return go_in_with_kin()
  elseif kind == 'x' then
    redis.call('HDEL', record, nonce)
    return go_in_alone()
  end
  return go_in_with_others()
end

local number = ''
if may_queue == '1' then
  number = place and redis.call('ZSCORE', queue, member)
  if not number then
    number = draw()
    if redis.call('EXISTS', leases) == 0 then
      forget_lines()
    end
    redis.call('ZADD', queue, number, member)
    keep(record, WAITER_LEASE + FENCE_IDLE)
    if kind ~= 'x' then
      redis.call('HSET', record, 'limit', kind)
    end
  end
  -- Written at every look: where its client listens may have changed. The number is the time when it came.
  redis.call('HSET', record, nonce, line(nonce, '', number))
  redis.call('ZADD', leases, now + WAITER_LEASE, member)
  if owner then
    redis.call('ZADD', leases, now + WAITER_LEASE, owner .. ':' .. nonce)
  end
  redis.call('PEXPIRE', queue, WAITER_LEASE)
  redis.call('PEXPIRE', leases, WAITER_LEASE)
end

local holder, remaining, foreign = '', 0, 0
if obstacle ~= true then
  holder = redis.call('HGET', record, nonce_of(obstacle)) or ''
  local turn = redis.call('ZSCORE', leases, 'turn:' .. obstacle)
  remaining, foreign = turn and turn - now or -1, turn and 2 or 0
elseif is_for_several(value) then
  local first = redis.call('ZRANGE', shared, 0, 0, 'WITHSCORES')
  holder = redis.call('HGET', record, nonce_of(first[1])) or ''
  remaining = first[2] - now
else
  remaining = redis.call('PTTL', lock)
  if is_alone(value) then
    holder = redis.call('HGET', record, 'holder') or ''
  else
    foreign = 1
  end
end
return {'wait', before, remaining, holder, foreign, number}
