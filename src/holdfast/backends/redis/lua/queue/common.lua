-- Shared by the scripts of the queue.
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)

-- `tostring` would round a number with 16 digits.
local function exact(number)
  return string.format('%.0f', number)
end

-- The next number, greater than all earlier ones. Queue entries and fences are numbered by the same counter. The clock
-- is its lower bound, so fences keep growing after the record was lost or an old copy of it was restored.
local function next_number()
  local last = tonumber(redis.call('HGET', record, 'fence') or 0)
  return exact(math.max(last + 1, now_us))
end

local function take_number()
  local number = next_number()
  redis.call('HSET', record, 'fence', number)
  return number
end

-- Keep a key for at least `ms`, and never shorten its ttl: another ticket may need it longer.
local function keep(key, ms)
  if redis.call('PTTL', key) < ms then
    redis.call('PEXPIRE', key, ms)
  end
end

-- With compat=python-redis-lock: wake the waiters of that library.
local function signal_foreign(signal)
  if signal ~= '' then
    redis.call('DEL', signal)
    redis.call('LPUSH', signal, 1)
    redis.call('PEXPIRE', signal, 1000)
  end
end

local function kind_of(member)
  return string.match(member, '^[^:]*')
end

local function nonce_of(member)
  return string.match(member, '[^:]*$')
end

-- An exclusive ticket with a named owner is sent with the kind "@<owner>". Its member is "x:<nonce>", as for any other
-- exclusive ticket.
local function owner_in(kind)
  return string.sub(kind, 1, 1) == '@' and kind
end

local function member_of(kind, nonce)
  return (owner_in(kind) and 'x' or kind) .. ':' .. nonce
end

-- The lock's key says that several tickets hold the lock together: those in the set `shared`.
local function is_for_several(value)
  return value and string.sub(value, 1, #SEVERAL) == SEVERAL
end

-- One exclusive ticket of holdfast holds the lock. The value that earlier versions wrote for an owner is not one.
local function is_alone(value)
  return value and string.sub(value, 1, #OURS) == OURS and not string.find(value, '^[+@]', #OURS + 1)
end

-- Remove all tickets of these clients from the queue. Their waiter leases and lines stay, see layout.lua.
local function skip_clients(channels)
  local from, count = 0, 1000
  local skipped = {}
  while true do
    local members, nonces = redis.call('ZRANGE', queue, from, from + count - 1), {}
    if #members == 0 then
      break
    end
    for index, member in ipairs(members) do
      nonces[index] = nonce_of(member)
    end
    for index, line in ipairs(redis.call('HMGET', record, unpack(nonces))) do
      if channels[channel_in(line) or ''] then
        table.insert(skipped, members[index])
      end
    end
    from = from + count
  end
  for _, member in ipairs(skipped) do
    redis.call('ZREM', queue, member)
    redis.call('ZREM', leases, 'turn:' .. member)
  end
end

-- Remove all waiters whose lease has expired. A ticket that was woken for its turn and has not polled since is skipped,
-- and so are all other tickets of its client, unless `own` is that client: the one that runs this script.
local function purge_waiters(own)
  local silent
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now)) do
    redis.call('ZREM', leases, member)
    local kind, woken = kind_of(member), string.match(member, '^turn:(.*)')
    if woken then
      local channel = redis.call('ZREM', queue, woken) == 1 and channel_in(redis.call('HGET', record, nonce_of(woken)))
      if channel and channel ~= own then
        silent = silent or {}
        silent[channel] = true
      end
    elseif kind ~= 'gone' and not owner_in(kind) then
      redis.call('ZREM', queue, member)
      redis.call('HDEL', record, nonce_of(member))
    end
  end
  if silent then
    skip_clients(silent)
  end
end

-- Remove all expired tickets. Returns the value of the lock's key after that.
local function purge(value, own)
  purge_waiters(own)
  local several = is_for_several(value)
  if is_alone(value) then
    return value  -- `shared` was empty when this ticket was granted
  end
  -- If the key was deleted or another program owns it, no shared lease counts.
  local expired = several and now or '+inf'
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', shared, '-inf', expired)) do
    redis.call('ZREM', shared, member)
    redis.call('HDEL', record, nonce_of(member))
  end
  if several and redis.call('EXISTS', shared) == 0 then
    redis.call('DEL', lock)
    return false
  end
  return value
end

-- Set the lock's key to `new_value`. The key and the set `shared` expire with the last lease in the set.
local function end_with_last(new_value)
  local last = redis.call('ZREVRANGE', shared, 0, 0, 'WITHSCORES')
  if last[2] then
    redis.call('SET', lock, new_value, 'PXAT', last[2])
    redis.call('PEXPIREAT', shared, last[2])
  else
    redis.call('DEL', lock)
  end
end

-- Notify a ticket once that it is its turn. It has WOKEN_LEASE to poll. Returns false if its client seems dead: no
-- connection received the message, or the ticket has not polled for SILENT although it should have.
local function wake(member)
  local lapses = redis.call('ZSCORE', leases, member)
  if lapses and redis.call('ZADD', leases, 'NX', now + WOKEN_LEASE, 'turn:' .. member) == 0 then
    return true
  end
  local line = lapses and redis.call('HGET', record, nonce_of(member))
  return line and publish(line, nonce_of(member)) ~= 0 and lapses - now > WAITER_LEASE - SILENT
end

-- Wake, in queue order, the tickets that can be granted now, up to the first that cannot. `ahead` is the number of
-- shared leases. Tickets of dead clients are skipped. `own` is the ticket that runs this script and need not be woken.
local function wake_behind(ahead, own)
  local from, count = 0, 1  -- usually there is one to wake
  while true do
    local members = redis.call('ZRANGE', queue, from, from + count - 1)
    local skipped = 0
    for _, member in ipairs(members) do
      local kind = kind_of(member)
      if kind ~= 'r' and ahead >= (tonumber(kind) or 1) then
        return
      end
      if member == own or wake(member) then
        if kind == 'x' then
          return
        end
        ahead = ahead + 1
      else
        redis.call('ZREM', queue, member)
        redis.call('ZREM', leases, 'turn:' .. member)
        skipped = skipped + 1
      end
    end
    if #members < count then
      return
    end
    from, count = from + count - skipped, 32
  end
end

local function wake_next(value, own)
  if not value or value == SHARED then
    wake_behind(redis.call('ZCARD', shared), own)
  end
end

