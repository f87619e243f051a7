-- Continues release_unwaited.lua: there are waiters, perhaps this ticket itself.
if is_over ~= '0' then
  local member = 'x:' .. nonce
  redis.call('ZREM', queue, member)
  redis.call('ZREM', leases, member, 'turn:' .. member)
  redis.call('HDEL', record, nonce)
end
if not value then
  purge_waiters()
  wake_next()
end
return had_it and 1 or 0
