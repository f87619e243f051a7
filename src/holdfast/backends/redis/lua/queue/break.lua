-- End exactly the leases with this fence (several tickets of one owner share one), and wake the next ticket. Returns 1
-- if there was one. A lock that another program holds has no fence and is broken with 0.
local fence, signal = unpack(ARGV)

local value = purge_shared(redis.call('GET', lock))
local broken = 0
if value and not is_for_several(value) then
  local is_ours = string.sub(value, 1, #OURS) == OURS
  if (is_ours and string.match(value, '^[^\n]*\n(%d+)\n') or '0') == fence then
    redis.call('DEL', lock)
    value = false
    broken = 1
  end
elseif value then
  for _, member in ipairs(redis.call('ZRANGE', shared, 0, -1)) do
    local line = redis.call('HGET', sharers, nonce_of(member))
    if line and string.match(line, '^[^\n]*\n(%d+)\n') == fence then
      redis.call('ZREM', shared, member)
      redis.call('HDEL', sharers, nonce_of(member))
      broken = 1
    end
  end
  end_with_last(value)
  value = redis.call('GET', lock)
end
if broken == 1 then
  signal_foreign(signal)
  wake_next(value)
  keep_waiters(value)
end
return broken
