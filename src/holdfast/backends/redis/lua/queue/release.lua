-- Release or withdraw a ticket, and wake the next one. Returns 1 if it held the lock until now.
--
-- `unanswered` is 1 if a try_acquire of this ticket got no answer. That request may still arrive on another connection,
-- so the server remembers for WAITER_LEASE that the ticket was withdrawn.
local member = member_of(kind, nonce)

local was_held = 0
if is_held_by(nonce, value) then
  redis.call('DEL', lock)
  value = false
  was_held = 1
  signal_foreign(signal)
end
if unanswered == '1' then
  redis.call('LREM', queue, 1, nonce)
  redis.call('HSET', waiters, nonce, 'gone\n' .. (now + WAITER_LEASE))
  if redis.call('EXISTS', queue) == 0 or redis.call('PTTL', waiters) < WAITER_LEASE then
    redis.call('PEXPIRE', waiters, WAITER_LEASE)
  end
  if string.sub(now_us, -6) % 16 == 0 then
    remove_expired_tombstones()
  end
elseif was_held == 0 then
  remove_waiter(nonce)
end

value = purge_shared(value)
if redis.call('ZREM', shared, member) == 1 then
  was_held = 1
  redis.call('HDEL', sharers, nonce)
  end_with_last(value)
  value = redis.call('GET', lock)
  if not value then
    signal_foreign(signal)
  end
end
wake_next(value)
keep_waiters(value)
return was_held
