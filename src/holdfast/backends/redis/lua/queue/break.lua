-- End exactly the leases with this fence (several tickets of one owner share one), and wake the next ticket. Returns 1
-- if there was one. A lock that another program holds has no fence and is broken with 0.
local fence, signal = unpack(ARGV)

local function has_fence(line)
  return line and string.match(line, '^[^\n]*\n([^\n]*)') == fence
end

local value = purge(redis.call('GET', lock))
local broken = 0
if value and not is_for_several(value) then
  local holder = redis.call('HGET', record, 'holder')
  local is_ours = is_alone(value)
  if (is_ours and has_fence(holder) and value == OURS .. string.match(holder, '^[^\n]*')) or (not is_ours and fence == '0') then
    redis.call('DEL', lock)
    value = false
    broken = 1
  end
elseif value then
  for _, member in ipairs(redis.call('ZRANGE', shared, 0, -1)) do
    if has_fence(redis.call('HGET', record, nonce_of(member))) then
      redis.call('ZREM', shared, member)
      redis.call('HDEL', record, nonce_of(member))
      broken = 1
    end
  end
  end_with_last(value)
  value = redis.call('GET', lock)
end
if broken == 1 then
  signal_foreign(signal)
  wake_next(value)
end
return broken
