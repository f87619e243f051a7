-- Continues renew_alone.lua: the ticket shares the lock.
local member = member_of(kind, nonce)
local is_expected = value == SHARED
if owner_in(kind) then
  is_expected = fence_of_owner(kind, value)
end
local ends = is_expected and redis.call('ZSCORE', shared, member)
if not ends or tonumber(ends) <= now then
  return 0
end
redis.call('ZADD', shared, now + ttl, member)
end_with_last(value)
return 1
