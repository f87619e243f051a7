-- Release or withdraw a ticket, and wake the next one. Returns 1 if it held the lock until now.
--
-- `unanswered` is 1 if a try_acquire of this ticket got no answer. That request may still arrive on another connection,
-- so the server remembers for WAITER_LEASE that the ticket was withdrawn.
local member = member_of(kind, nonce)

local was_held = 0
if value == OURS .. nonce then
  redis.call('DEL', lock)
  value = false
  was_held = 1
  signal_foreign(signal)
end
if unanswered == '1' then
  redis.call('ZADD', leases, now + WAITER_LEASE, 'gone:' .. nonce)
  redis.call('PEXPIRE', leases, WAITER_LEASE)
elseif was_held == 1 then
  -- An exclusive ticket held the lock: there are no shared leases, and nothing else of the ticket to delete.
  purge_waiters()
  wake_behind(0)
  return 1
end
if redis.call('EXISTS', leases, shared) == 0 then
  return was_held
end

value = purge(value)
if redis.call('ZREM', shared, member) == 1 then
  was_held = 1
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
return was_held
