-- The waiters of one node.
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)

-- `tostring` would round a number with 16 digits.
local function exact(number)
  return string.format('%.0f', number)
end

-- Keep a key for at least `ms`, and never shorten its ttl: another ticket may need it longer.
local function keep(key, ms)
  if redis.call('PTTL', key) < ms then
    redis.call('PEXPIRE', key, ms)
  end
end

local function nonce_of(member)
  return string.match(member, '[^:]*$')
end

-- The fields of a ticket's line that its client sent.
local function about_in(line)
  return string.match(line or '', '^[^\n]*\n[^\n]*\n[^\n]*\n(.*)')
end

-- Remove all tickets of these clients from the queue. Their waiter leases and lines stay, see votes.lua.
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
      if channels[channel_in(about_in(line)) or ''] then
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
    local woken = string.match(member, '^turn:(.*)')
    if woken then
      local is_queued = redis.call('ZREM', queue, woken) == 1
      local channel = is_queued and channel_in(about_in(redis.call('HGET', record, nonce_of(woken))))
      if channel and channel ~= own then
        silent = silent or {}
        silent[channel] = true
      end
    elseif string.sub(member, 1, 5) ~= 'gone:' then
      redis.call('ZREM', queue, member)
      redis.call('HDEL', record, nonce_of(member))
    end
  end
  if silent then
    skip_clients(silent)
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
  return line and publish(about_in(line), nonce_of(member)) ~= 0 and lapses - now > WAITER_LEASE - SILENT
end

-- Wake the first ticket in the queue. Tickets of dead clients are skipped.
local function wake_next()
  while true do
    local member = redis.call('ZRANGE', queue, 0, 0)[1]
    if not member or wake(member) then
      return
    end
    redis.call('ZREM', queue, member)
    redis.call('ZREM', leases, 'turn:' .. member)
  end
end

