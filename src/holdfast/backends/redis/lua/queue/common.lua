-- What the scripts of the queue share.
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)

-- Not tostring: it would round a number with 16 digits.
local function exact(number)
  return string.format('%.0f', number)
end

-- The next number, greater than all before: of a place in line, and then of a fence. The clock is its floor, so that
-- fences go on growing where the record was lost, or an old one came back.
local function next_number()
  local last = tonumber(redis.call('HGET', record, 'fence') or 0)
  return exact(math.max(last + 1, now_us))
end

local function draw()
  local number = next_number()
  redis.call('HSET', record, 'fence', number)
  return number
end

-- Let a key live for at least that long: never shorter than somebody else needs it.
local function keep(key, ms)
  if redis.call('PTTL', key) < ms then
    redis.call('PEXPIRE', key, ms)
  end
end

-- As python-redis-lock wakes those who wait for its lock, if we are to.
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

-- An exclusive ticket of a named owner comes with that as its kind, "@<owner>"; its member is as any exclusive one's.
local function owner_in(kind)
  return string.sub(kind, 1, 1) == '@' and kind
end

local function member_of(kind, nonce)
  return (owner_in(kind) and 'x' or kind) .. ':' .. nonce
end

-- What the lock's key says lets several be in: those in the set.
local function is_for_several(value)
  return value and string.sub(value, 1, #SEVERAL) == SEVERAL
end

-- One exclusive ticket of ours is in. What earlier versions have put there for an owner is not.
local function is_alone(value)
  return value and string.sub(value, 1, #OURS) == OURS and not string.find(value, '^[+@]', #OURS + 1)
end

-- Take the tickets of these clients out of the queue, all at once. Their leases and lines stay: see layout.lua.
local function pass_over(channels)
  local from, count = 0, 1000
  local passed = {}
  while true do
    local members, nonces = redis.call('ZRANGE', queue, from, from + count - 1), {}
    if #members == 0 then
      break
    end
    for place, member in ipairs(members) do
      nonces[place] = nonce_of(member)
    end
    for place, line in ipairs(redis.call('HMGET', record, unpack(nonces))) do
      if channels[channel_in(line) or ''] then
        table.insert(passed, members[place])
      end
    end
    from = from + count
  end
  for _, member in ipairs(passed) do
    redis.call('ZREM', queue, member)
    redis.call('ZREM', leases, 'turn:' .. member)
  end
end

-- All dead waiters lapse at once. A ticket that was told that it is its turn, and has not polled since, is passed over,
-- and so are all others of its client, unless that is `own`: the client that runs this script.
local function purge_waiters(own)
  local silent
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now)) do
    redis.call('ZREM', leases, member)
    local kind, told = kind_of(member), string.match(member, '^turn:(.*)')
    if told then
      local channel = redis.call('ZREM', queue, told) == 1 and channel_in(redis.call('HGET', record, nonce_of(told)))
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
    pass_over(silent)
  end
end

-- Take out what has run out, whoever's it is. Returns what the lock's key says then.
local function purge(value, own)
  purge_waiters(own)
  local several = is_for_several(value)
  if is_alone(value) then
    return value  -- when this one went in, nobody was in with others
  end
  -- Where the key was deleted, or belongs to somebody else by now, nobody is in with others.
  local over = several and now or '+inf'
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', shared, '-inf', over)) do
    redis.call('ZREM', shared, member)
    redis.call('HDEL', record, nonce_of(member))
  end
  if several and redis.call('EXISTS', shared) == 0 then
    redis.call('DEL', lock)
    return false
  end
  return value
end

-- The lock's key, which says that, and the set of who is in, end with the last lease of these.
local function end_with_last(says)
  local last = redis.call('ZREVRANGE', shared, 0, 0, 'WITHSCORES')
  if last[2] then
    redis.call('SET', lock, says, 'PXAT', last[2])
    redis.call('PEXPIREAT', shared, last[2])
  else
    redis.call('DEL', lock)
  end
end

-- Tell a ticket that it is its turn, once: it has WOKEN_LEASE to poll. Returns false if its client is not there: no
-- connection has received that, or the ticket has not polled for SILENT although it should have.
local function wake(member)
  local lapses = redis.call('ZSCORE', leases, member)
  if lapses and redis.call('ZADD', leases, 'NX', now + WOKEN_LEASE, 'turn:' .. member) == 0 then
    return true
  end
  local line = lapses and redis.call('HGET', record, nonce_of(member))
  return line and publish(line, nonce_of(member)) ~= 0 and lapses - now > WAITER_LEASE - SILENT
end

-- Wake those that the rule lets in now, in order, up to the first that it does not; that many are in with others. Those
-- whose clients are not there are passed over. `own` is the ticket that runs this script, and need not be woken.
local function wake_behind(ahead, own)
  local from, count = 0, 1  -- mostly there is one to wake
  while true do
    local members = redis.call('ZRANGE', queue, from, from + count - 1)
    local passed = 0
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
        passed = passed + 1
      end
    end
    if #members < count then
      return
    end
    from, count = from + count - passed, 32
  end
end

local function wake_next(value, own)
  if not value or value == SHARED then
    wake_behind(redis.call('ZCARD', shared), own)
  end
end

