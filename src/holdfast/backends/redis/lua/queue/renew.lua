-- Extend a lease to its ttl from now. Returns 1 if it still exists.
local nonce, kind, ttl = unpack(ARGV)

local value = redis.call('GET', lock)
if kind == 'x' then
  if value ~= OURS .. nonce then
    return 0
  end
  redis.call('PEXPIRE', lock, ttl)
else
  local member, expected = member_of(kind, nonce), owner_in(kind) and SEVERAL .. kind or SHARED
  local ends = value == expected and redis.call('ZSCORE', shared, member)
  if not ends or tonumber(ends) <= now then
    return 0
  end
  redis.call('ZADD', shared, now + ttl, member)
  end_with_last(expected)
end
keep(record, ttl + FENCE_IDLE)
return 1
