-- Acquire the lock, or join its queue, or keep the queue entry of an earlier call.
--
-- Returns the fence if the ticket is granted. Otherwise:
--   {'wait', tickets ahead in the queue, remaining ms of the blocker or -1, its line, its kind, number of the queue
--    entry or ''}; the kind is 1 for another program, 2 for a ticket whose turn it is, 0 for any other ticket
--   {'limit', kind, line} if other tickets use another limit
--   {'method', value} if the lock is in use with another method
--   {'withdrawn'} if this ticket was released before
local owner, member = owner_in(kind), member_of(kind, nonce)
if owner then
  kind = 'x'
end

local function line(name, fence, since)
  return name .. '\n' .. fence .. '\n' .. since .. '\n' .. about
end

-- The key is written last: if the server refuses an earlier write, no ticket is granted.
local function grant_exclusive()
  local fence = next_number()
  redis.call('HSET', record, 'fence', fence, 'holder', line(nonce, fence, exact(now_us)))
  redis.call('PEXPIRE', record, ttl + FENCE_IDLE)
  redis.call('SET', lock, OURS .. nonce, 'PX', ttl)
  return tonumber(fence)
end

local function grant_shared()
  local fence = take_number()
  redis.call('HSET', record, 'limit', kind, nonce, line(nonce, fence, exact(now_us)))
  keep(record, ttl + FENCE_IDLE)
  redis.call('ZADD', shared, now + ttl, member)
  end_with_last(SHARED)
  return tonumber(fence)
end

-- The first ticket of an owner takes a new fence. All tickets of this owner share it while one of them holds the lock,
-- also a ticket that is granted again, because the others may use that fence already. The first ticket wakes those of
-- the same owner that wait; later ones need not.
local function grant_same_owner()
  local holder = value == SEVERAL .. owner and redis.call('HGET', record, 'holder')
  local fence = holder and string.match(holder, '^' .. owner .. '\n(%d+)\n')
  local is_first = not fence
  if is_first then
    fence = take_number()
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

-- When all waiters have died, the set of their leases expires, but their lines stay in the record. Delete these.
local function delete_stale_lines()
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

-- Granted before, by a request whose reply was lost. No client has received that fence, and it may be older than a
-- failover, so take a new one.
if value == OURS .. nonce then
  return grant_exclusive()
end

-- The lock is free and this ticket is the first in the queue, the usual end of a wait. `others == 1` says that `leases`
-- exists and `shared` does not.
if others == 1 and redis.call('ZRANGE', queue, 0, 0)[1] == member then
  redis.call('ZREM', queue, member)
  redis.call('ZREM', leases, member, 'turn:' .. member)
  redis.call('HDEL', record, nonce)
  return grant_exclusive()
end

-- A waiter that polls is alive. If its lease has not expired, it keeps its queue entry, or gets it back if it was
-- skipped.
redis.call('ZADD', leases, 'XX', now + WAITER_LEASE, member)
redis.call('ZREM', leases, 'turn:' .. member)
value = purge(value, channel_in('\n\n\n' .. about))
if value and value ~= 'holdfast:shared' and string.sub(value, 1, 9) == 'holdfast:' and string.sub(value, 1, #OURS) ~= OURS then
  return {'method', value}
end
local rank = redis.call('ZRANK', queue, member)
if not rank then
  if redis.call('ZSCORE', leases, 'gone:' .. nonce) then
    return {'withdrawn'}
  end
  local line = redis.call('ZSCORE', leases, member) and redis.call('HGET', record, nonce)
  local number = string.match(line or '', '^[^\n]*\n\n(%d+)\n')
  if number then
    redis.call('ZADD', queue, number, member)
    rank = redis.call('ZRANK', queue, member)
  end
end

-- All shared tickets of a lock must have the same limit. If the record names another limit, check whether a ticket with
-- that limit still exists.
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

-- The rule: a ticket is granted when fewer than `limit` tickets are ahead of it and none of these is exclusive, or when
-- a ticket of the same owner holds the lock.
if not value or value == SHARED then
  wake_next(value, member)
  rank = rank and redis.call('ZRANK', queue, member)
end
local before = rank or redis.call('ZCARD', queue)
local blocker  -- the member that blocks this ticket; or true: the value of the lock's key
if owner and value == SEVERAL .. owner then
  blocker = nil  -- no waiter blocks it
elseif kind == 'x' then
  if value then
    blocker = true
  elseif before > 0 then
    blocker = redis.call('ZRANGE', queue, 0, 0)[1]
  end
elseif value and value ~= SHARED then
  blocker = true
elseif not redis.call('ZSCORE', shared, member) then
  if kind ~= 'r' and redis.call('ZCARD', shared) + before >= tonumber(kind) then
    blocker = value and true or redis.call('ZRANGE', queue, 0, 0)[1]
  elseif before > 0 then
    for _, other in ipairs(redis.call('ZRANGE', queue, 0, before - 1)) do
      if kind_of(other) == 'x' then
        blocker = other
        break
      end
    end
  end
end

if not blocker then
  if rank then
    redis.call('ZREM', queue, member)
    redis.call('ZREM', leases, member, (owner or kind) .. ':' .. nonce)
  end
  if owner then
    return grant_same_owner()
  elseif kind == 'x' then
    redis.call('HDEL', record, nonce)
    return grant_exclusive()
  end
  return grant_shared()
end

local number = ''
if may_queue == '1' then
  number = rank and redis.call('ZSCORE', queue, member)
  if not number then
    number = take_number()
    if redis.call('EXISTS', leases) == 0 then
      delete_stale_lines()
    end
    redis.call('ZADD', queue, number, member)
    keep(record, WAITER_LEASE + FENCE_IDLE)
    if kind ~= 'x' then
      redis.call('HSET', record, 'limit', kind)
    end
  end
  -- Written at every poll, because the client's channel may have changed. The number tells when the ticket was queued.
  redis.call('HSET', record, nonce, line(nonce, '', number))
  redis.call('ZADD', leases, now + WAITER_LEASE, member)
  if owner then
    redis.call('ZADD', leases, now + WAITER_LEASE, owner .. ':' .. nonce)
  end
  redis.call('PEXPIRE', queue, WAITER_LEASE)
  redis.call('PEXPIRE', leases, WAITER_LEASE)
end

local holder, remaining, blocker_kind = '', 0, 0
if blocker ~= true then
  holder = redis.call('HGET', record, nonce_of(blocker)) or ''
  local turn = redis.call('ZSCORE', leases, 'turn:' .. blocker)
  remaining, blocker_kind = turn and turn - now or -1, turn and 2 or 0
elseif is_for_several(value) then
  local first = redis.call('ZRANGE', shared, 0, 0, 'WITHSCORES')
  holder = redis.call('HGET', record, nonce_of(first[1])) or ''
  remaining = first[2] - now
else
  remaining = redis.call('PTTL', lock)
  if is_alone(value) then
    holder = redis.call('HGET', record, 'holder') or ''
  else
    blocker_kind = 1
  end
end
return {'wait', before, remaining, holder, blocker_kind, number}
