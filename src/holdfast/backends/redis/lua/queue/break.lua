-- End exactly the leases with this fence (several tickets of one owner share one), and wake the next ticket. Returns 1
-- if there was one. A lock that another program holds has no fence and is broken with 0.
--
-- A client that passes the lease on between its callers has a range of fences. With `is_forced` = 1, any fence of the
-- range ends the lease. Otherwise the lease stays, and the reply is {first, last}: one of these fences is in use.
local fence, signal, is_forced = unpack(ARGV)

local value = purge_shared(redis.call('GET', lock))
local broken = 0
if value and not is_for_several(value) then
  local is_ours = string.sub(value, 1, #OURS) == OURS
  local first, last = string.match(value, '^[^\n]*\n(%d+)\n%d+\n%d+ ?(%d*)\n')
  local is_in_range = is_ours and last ~= '' and tonumber(first) <= tonumber(fence) and tonumber(fence) <= tonumber(last)
  if is_in_range and is_forced ~= '1' then
    return {first, last}
  end
  if is_in_range or (is_ours and last == '' and first or '0') == fence then
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
