-- Release or withdraw a ticket, and wake who is next. Returns 1 if it was in until now.
--
-- `unheard` is 1 if an enter of this ticket got no answer: it may still be on its way, on another connection. Then it is
-- remembered for a while that the ticket has left.
local member = member_of(kind, nonce)

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
  wake_behind(0)
  return 1
end
if redis.call('EXISTS', leases, shared) == 0 then
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
elseif redis.call('ZREM', leases, member, 'turn:' .. member, kind .. ':' .. nonce) > 0 then
  redis.call('ZREM', queue, member)
  redis.call('HDEL', record, nonce)
end
wake_next(value)
return was_in
