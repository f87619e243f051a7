-- Release or withdraw a ticket, and wake who is next. Returns 1 if it was in until now.
--
-- `unheard` is 1 if an enter of this ticket got no answer: it may still be on its way, on another connection. Then it is
-- remembered for a while that the ticket has left.
local member = member_of(kind, nonce)

-- Let in the first in line at once, if it has asked for that, is an exclusive one, and was there a moment ago: its hint
-- has the fence, which spares it the way here and back. Whether it can hear that.
--
-- A server without memory refuses none of this: the key has been deleted by then, and scripts are not stopped half-way.
local function hand_over()
  local first = redis.call('ZRANGE', queue, 0, 0)[1]
  if not first or kind_of(first) ~= 'x' then
    return false
  end
  local lapses = redis.call('ZSCORE', leases, first) or now
  if lapses - now < WAITER_LEASE - LOOK_AGAIN then
    return false
  end
  local its_nonce = nonce_of(first)
  local its_line = redis.call('HGET', record, its_nonce)
  local about, command, ttl, channel =
    string.match(its_line or '', '^[^\n]*\n[^\n]*\n[^\n]*\n((%a+) (%d+)\n([^\n]*).*)')
  if not about then
    return false
  end
  local fence = next_number()
  local holder = table.concat({its_nonce, fence, exact(now_us), about}, '\n')
  redis.call('HSET', record, 'fence', fence, 'holder', holder)
  redis.call('PEXPIRE', record, ttl + FENCE_IDLE)
  redis.call('SET', lock, OURS .. its_nonce, 'PX', ttl)
  local listeners = redis.pcall(command, channel, its_nonce .. ' ' .. fence)
  if type(listeners) == 'table' or listeners == 0 then
    redis.call('DEL', lock)
    return false
  end
  redis.call('ZREM', queue, first)
  redis.call('ZREM', leases, first)
  redis.call('HDEL', record, its_nonce)
  return true
end

local was_in = 0
if value == OURS .. nonce then
  redis.call('DEL', lock)
  value = false
  was_in = 1
  signal_foreign(signal)
end
if unheard == '1' then
  redis.call('ZADD', leases, now + WAITER_LEASE, 'gone:' .. nonce)
  redis.call('PEXPIRE', leases, WAITER_LEASE)
elseif was_in == 1 then
  -- It was in alone: nobody is in with others, and nothing else is left of it.
  purge_waiters()
  if not hand_over() then
    wake_behind(0)
  end
  return 1
end
if redis.call('EXISTS', queue, shared) == 0 then
  return was_in
end

value = purge(value)
if redis.call('ZREM', shared, member) == 1 then
  was_in = 1
  redis.call('HDEL', record, nonce)
  end_with_last(value)
  value = redis.call('GET', lock)
  if not value then
    signal_foreign(signal)
  end
elseif redis.call('ZREM', queue, member) == 1 then
  redis.call('ZREM', leases, member, kind .. ':' .. nonce)
  redis.call('HDEL', record, nonce)
end
wake_next(value)
return was_in
