-- Acquire the lock, or join its queue, or keep the queue entry of an earlier call.
--
-- Returns the fence if the ticket is granted. Otherwise:
--   {'wait', tickets ahead in the queue (from 2 on, there may be more), remaining ms of the blocker or -1, its line,
--    its type, number of the queue entry or ''}; the type is 1 for another program, 2 for a ticket whose turn it is, 0
--    for any other ticket
--   {'limit', kind, line} if other tickets use another limit
--   {'method', value} if the lock is in use with another method or in another format
--   {'withdrawn'} if this ticket was released before
local owner, member = owner_in(kind), member_of(kind, nonce)
own_channel = channel_in(about)

local function grant_exclusive()
  local fence = take_fence(now_us)
  local kept = now + ttl + KEEP
  if redis.call('EXISTS', queue) == 1 then
    keep_until(kept)
  else
    -- As soon as `waiters` is empty, the fast path is possible again.
    redis.call('HDEL', waiters, SILENT_CLIENTS)
    remove_expired_tombstones()
    redis.call('ZADD', index, kept, lock)
  end
  hold(nonce, fence, now_us, kept, ttl, about)
  return tonumber(fence)
end

local function add_sharer(fence, new_value)
  redis.call('HSET', sharers, nonce, table.concat({nonce, fence, now_us, '', about}, '\n'))
  redis.call('ZADD', shared, now + ttl, member)
  remove_dead_locks()
  end_with_last(new_value)
  return tonumber(fence)
end

-- The first ticket of an owner takes a new fence. All tickets of this owner share it while one of them holds the lock,
-- also a ticket that is granted again, because the others may use that fence already. The first ticket wakes the
-- waiting tickets of the same owner; later ones need not.
local function grant_same_owner()
  local fence = fence_of_owner(owner, value)
  if fence then
    return add_sharer(fence, value)
  end
  fence = take_fence(now_us)
  add_sharer(fence, SEVERAL .. owner .. '\n' .. fence)
  each_waiter(100, function(other, entry)
    if entry.kind == owner and not is_skipped(other, entry) then
      wake(other, entry)
    end
  end)
  return tonumber(fence)
end

-- Granted before, by a request whose reply was lost. No client has received that fence, and it may be older than a
-- failover, so take a new one.
if is_held_by(nonce, value) then
  return grant_exclusive()
end

-- A waiter that polls is alive. Its entry has not been removed yet, so it keeps its place in the queue.
local text = redis.call('HGET', waiters, nonce)
local entry = parse_entry(text)
local gone_until = string.match(text or '', '^gone\n(%d+)$')
if gone_until and tonumber(gone_until) > now then
  return {'withdrawn'}
end
if entry then
  -- The client's channel may have changed.
  entry.lapses, entry.turn, entry.about = now + WAITER_LEASE, 0, about
  write_entry(nonce, entry)
end

value = purge_shared(value)
if value and string.sub(value, 1, 9) == 'holdfast:' and string.sub(value, 1, #OURS) ~= OURS then
  return {'method', string.sub(value, 1, 255)}
end

-- All shared tickets of a lock must have the same limit. Each is compared with another one when it arrives.
local is_sharer = not is_exclusive(kind) and redis.call('ZSCORE', shared, member)
if not is_exclusive(kind) and not entry and not is_sharer then
  local other = value == SHARED and redis.call('ZRANGE', shared, 0, 0)[1]
  local theirs, line = other and kind_of(other), other and redis.call('HGET', sharers, nonce_of(other))
  if not other then
    each_waiter(100, function(_, waiter)
      if not is_exclusive(waiter.kind) then
        theirs, line = waiter.kind, '\n\n\n\n' .. waiter.about
        return true
      end
    end)
  end
  if theirs and theirs ~= kind then
    return {'limit', theirs, line or ''}
  end
end

-- The rule: a ticket is granted when fewer than `limit` tickets are ahead of it and none of these is exclusive, or when
-- a ticket of the same owner holds the lock.
wake_next(value, nonce)
local before, first, exclusive = 0, nil, nil  -- tickets ahead, and of these the first one and the first exclusive one
each_waiter(3, function(other, waiter)
  if other == nonce then
    return true
  end
  if not is_skipped(other, waiter) then
    before = before + 1
    first = first or waiter
    exclusive = exclusive or (is_exclusive(waiter.kind) and waiter)
    return before >= 2 and (exclusive or is_exclusive(kind))
  end
end)
local blocker  -- the entry that blocks this ticket; true if the holder in the lock's key blocks it
if owner and fence_of_owner(owner, value) then
  blocker = nil  -- no waiter blocks it
elseif is_exclusive(kind) then
  blocker = value and true or first
elseif value and value ~= SHARED then
  blocker = true
elseif not is_sharer then
  if kind ~= 'r' and redis.call('ZCARD', shared) + before >= tonumber(kind) then
    blocker = value and true or first
  else
    blocker = exclusive
  end
end

if not blocker then
  if text then
    remove_waiter(nonce)
  end
  if owner then
    return grant_same_owner()
  elseif kind == 'x' then
    return grant_exclusive()
  end
  return add_sharer(take_fence(now_us), SHARED)
end

local number = entry and entry.number or ''
if may_queue == '1' then
  if not entry then
    -- Not less than any fence of this lock so far, which may be ahead of the clock.
    number = now_us
    local last = redis.call('GET', watermark)
    if last and tonumber(last) > tonumber(now_us) then
      number = last
    end
    redis.call('RPUSH', queue, nonce)
    write_entry(nonce, {kind = kind, number = number, lapses = now + WAITER_LEASE, turn = 0, about = about})
  end
  local kept = math.max(kept_in(value), now + WAITER_LEASE)
  redis.call('PEXPIREAT', queue, kept)
  redis.call('PEXPIREAT', waiters, kept)
  redis.call('ZADD', index, 'GT', kept, lock)
end

local line, remaining, blocker_kind = '', 0, 0
if blocker ~= true then
  line = '\n\n\n\n' .. blocker.about
  remaining, blocker_kind = blocker.turn > 0 and blocker.turn - now or -1, blocker.turn > 0 and 2 or 0
elseif is_for_several(value) then
  local next_end = redis.call('ZRANGE', shared, 0, 0, 'WITHSCORES')
  line = redis.call('HGET', sharers, nonce_of(next_end[1])) or ''
  remaining = next_end[2] - now
else
  remaining = redis.call('PTTL', lock)
  if string.sub(value, 1, #OURS) == OURS then
    line = string.sub(value, #OURS + 1)
  else
    blocker_kind = 1
  end
end
return {'wait', before, remaining, line, blocker_kind, number}
