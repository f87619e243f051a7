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
  return value == SHARED or (value and string.sub(value, 1, #OURS + 1) == OURS .. '@')
end

-- All dead waiters lapse at once.
local function purge_waiters()
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now)) do
    redis.call('ZREM', leases, member)
    if redis.call('ZREM', queue, member) == 1 then
      redis.call('HDEL', record, nonce_of(member))
    end
  end
end

-- Take out what has run out, whoever's it is. Returns what the lock's key says then.
local function purge(value)
  purge_waiters()
  local several = is_for_several(value)
  if value and not several and string.sub(value, 1, #OURS) == OURS then
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

-- A hint, once: whether it comes, and in time, decides nothing. So it may fail too.
local function wake(member)
  if redis.call('ZADD', leases, 'LT', 'CH', now + WOKEN_LEASE, member) == 0 then
    return  -- woken already
  end
  local ticket = redis.call('HGET', record, nonce_of(member))
  if ticket then
    local command, channel = string.match(ticket, '^[^\n]*\n[^\n]*\n[^\n]*\n(%a+)[^\n]*\n([^\n]*)')
    redis.pcall(command, channel, nonce_of(member))
  end
end

-- Wake those that the rule lets in now, in order, up to the first that it does not; that many are in with others.
local function wake_behind(ahead)
  local from, count = 0, 1  -- mostly there is one to wake
  while true do
    local members = redis.call('ZRANGE', queue, from, from + count - 1)
    for _, member in ipairs(members) do
      local kind = kind_of(member)
      if kind == 'x' then
        if ahead == 0 then
          wake(member)
        end
        return
      elseif kind ~= 'r' and ahead >= tonumber(kind) then
        return
      end
      wake(member)
      ahead = ahead + 1
    end
    if #members < count then
      return
    end
    from, count = from + count, 32
  end
end

local function wake_next(value)
  if not value or value == SHARED then
    wake_behind(redis.call('ZCARD', shared))
  end
end

