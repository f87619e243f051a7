-- Shared by the scripts of the queue.
local now_us, now = clock()
local own_channel  -- of the client that runs this script, if it is known: that client is alive

-- With compat=python-redis-lock: wake the waiters of that library.
local function signal_foreign(signal)
  if signal ~= '' then
    redis.call('DEL', signal)
    redis.call('LPUSH', signal, 1)
    redis.call('PEXPIRE', signal, 1000)
  end
end

-- The kind if it is "@<owner>", otherwise false.
local function owner_in(kind)
  return string.sub(kind, 1, 1) == '@' and kind
end

local function is_exclusive(kind)
  return kind == 'x' or owner_in(kind)
end

local function kind_of(member)
  return string.match(member, '^[^:]*')
end

local function nonce_of(member)
  return string.match(member, '[^:]*$')
end

local function member_of(kind, nonce)
  return (owner_in(kind) and 'x' or kind) .. ':' .. nonce
end

-- The lock's key says that several tickets hold the lock together: those in the set `shared`.
local function is_for_several(value)
  return value and string.sub(value, 1, #SEVERAL) == SEVERAL
end

-- Tickets of this owner hold the lock. Returns their fence.
local function fence_of_owner(owner, value)
  local start = SEVERAL .. owner .. '\n'
  return value and string.sub(value, 1, #start) == start and string.sub(value, #start + 1)
end

-- ── waiters ──────────────────────────────────────────────────────────────────────────────────────────────────────────

-- The entry of a waiting ticket; nil for a ticket that was withdrawn.
local function parse_entry(text)
  local kind, number, lapses, turn, about = string.match(text or '', '^([^\n]*)\n(%d+)\n(%d+)\n(%-?%d+)\n(.*)')
  return kind and {kind = kind, number = number, lapses = tonumber(lapses), turn = tonumber(turn), about = about}
end

local function write_entry(nonce, entry)
  redis.call('HSET', waiters, nonce, table.concat({entry.kind, entry.number, entry.lapses, entry.turn, entry.about}, '\n'))
end

local function remove_waiter(nonce)
  redis.call('LREM', queue, 1, nonce)
  redis.call('HDEL', waiters, nonce)
end

-- Call `visit` with the nonce and the entry of each waiting ticket in order, until it returns true. Tickets whose
-- waiter lease has expired are removed. `count` is how many entries the first step reads.
local function each_waiter(count, visit)
  local from = 0
  while true do
    local nonces = redis.call('LRANGE', queue, from, from + count - 1)
    if not nonces[1] then
      return
    end
    for number, text in ipairs(redis.call('HMGET', waiters, unpack(nonces))) do
      local entry = parse_entry(text)
      if not entry or entry.lapses <= now then
        remove_waiter(nonces[number])
      elseif visit(nonces[number], entry) then
        return
      else
        from = from + 1
      end
    end
    if #nonces < count then
      return
    end
    count = 100
  end
end

-- Remove the tombstones of tickets that were withdrawn more than WAITER_LEASE ago, because `waiters` may never expire.
local function remove_expired_tombstones()
  local fields = redis.call('HGETALL', waiters)
  for number = 1, #fields, 2 do
    local gone_until = string.match(fields[number + 1], '^gone\n(%d+)$')
    if gone_until and tonumber(gone_until) <= now then
      redis.call('HDEL', waiters, fields[number])
    end
  end
end

local silent  -- the field SILENT_CLIENTS, after it was read once

-- Skip all tickets of a client from now on. Each counts again after its next poll.
local function skip_client(channel)
  if not channel or channel == own_channel then
    return
  end
  local lines = {}
  for at, other in silent_clients(redis.call('HGET', waiters, SILENT_CLIENTS)) do
    if other ~= channel and tonumber(at) > now - WAITER_LEASE then
      table.insert(lines, at .. ' ' .. other .. '\n')
    end
  end
  table.insert(lines, now .. ' ' .. channel .. '\n')
  silent = table.concat(lines)
  redis.call('HSET', waiters, SILENT_CLIENTS, silent)
end

-- Whether a ticket does not count, because it did not poll in its turn, or has not polled since its client was found
-- silent.
local function is_skipped(nonce, entry)
  if entry.turn ~= 0 and entry.turn <= now then
    if entry.turn > 0 then
      skip_client(channel_in(entry.about))
      entry.turn = -1
      write_entry(nonce, entry)
    end
    return true
  end
  silent = silent or redis.call('HGET', waiters, SILENT_CLIENTS) or ''
  return silent ~= '' and entry.lapses - WAITER_LEASE < (silent_since(silent, channel_in(entry.about)) or 0)
end

-- Notify a ticket once that it is its turn. It has WOKEN_LEASE to poll. Returns false if it is skipped because its
-- client seems dead: no connection received the message, or the ticket has not polled for SILENT although it should
-- have.
local function wake(nonce, entry)
  if entry.turn > 0 then
    return true
  end
  local is_dead = publish(entry.about, nonce) == 0
  local is_silent = entry.lapses - WAITER_LEASE <= now - SILENT
  entry.turn = (is_dead or is_silent) and -1 or now + WOKEN_LEASE
  write_entry(nonce, entry)
  if is_dead then
    skip_client(channel_in(entry.about))
  end
  return entry.turn > 0
end

-- Wake, in queue order, the tickets that can be granted now, up to the first that cannot. `ahead` is the number of
-- shared leases. `own` is the ticket that runs this script and need not be woken.
local function wake_behind(ahead, own)
  each_waiter(1, function(nonce, entry)
    if entry.kind ~= 'r' and ahead >= (tonumber(entry.kind) or 1) then
      return true
    end
    if not is_skipped(nonce, entry) and (nonce == own or wake(nonce, entry)) then
      ahead = ahead + 1
      return is_exclusive(entry.kind)
    end
  end)
end

local function wake_next(value, own)
  if not value or value == SHARED then
    wake_behind(redis.call('ZCARD', shared), own)
  end
end

-- ── holders ──────────────────────────────────────────────────────────────────────────────────────────────────────────

-- Locks whose holders died remain in the index. One grant of sixteen removes up to 32 of them.
local function remove_dead_locks()
  if string.sub(now_us, -6) % 16 == 0 then
    local dead = redis.call('ZRANGEBYSCORE', index, '-inf', '(' .. now, 'LIMIT', 0, 32)
    if dead[1] then
      redis.call('ZREM', index, unpack(dead))
    end
  end
end

-- Remove the shared leases that have expired. Returns the value of the lock's key after that.
local function purge_shared(value)
  local several = is_for_several(value)
  if value and not several and string.sub(value, 1, #OURS) == OURS then
    return value  -- `shared` was empty when this ticket was granted
  end
  -- If the key was deleted or another ticket or program owns it, no shared lease counts.
  local expired = redis.call('ZRANGEBYSCORE', shared, '-inf', several and now or '+inf')
  for _, member in ipairs(expired) do
    redis.call('ZREM', shared, member)
    redis.call('HDEL', sharers, nonce_of(member))
  end
  if several and redis.call('EXISTS', shared) == 0 then
    redis.call('DEL', lock)
    return false
  end
  return value
end

-- Set the lock's key to `new_value`. This key and the keys of the shared leases expire with the last shared lease.
local function end_with_last(new_value)
  local last = redis.call('ZREVRANGE', shared, 0, 0, 'WITHSCORES')
  if last[2] then
    redis.call('PEXPIREAT', shared, last[2])
    redis.call('PEXPIREAT', sharers, last[2])
    redis.call('ZADD', index, 'GT', last[2], lock)
    redis.call('SET', lock, new_value, 'PXAT', last[2])
  else
    redis.call('DEL', lock)
  end
end

-- After tickets were removed: a lock without a holder is in the index only while tickets wait for it. A live waiter
-- polls before WAITER_LEASE is over.
local function keep_waiters(value)
  if not value and redis.call('EXISTS', queue) == 0 then
    redis.call('ZREM', index, lock)
  elseif not value then
    keep_until(now + WAITER_LEASE)
  end
end

