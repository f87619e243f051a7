-- Extend the lease of a client that passes it on between its callers: start its ttl again, and reserve `count` fences. The
-- lock's value has their range before the client uses any of them. Returns the first fence; 0 if the ticket does not hold
-- the lock any more; -1, without a change, if other tickets wait and `may_stay` is 0.
local nonce, ttl, count, may_stay, about = unpack(ARGV)
local value = redis.call('GET', lock)
if not is_held_by(nonce, value) then
  return 0
end
if may_stay == '0' and redis.call('EXISTS', queue) == 1 then
  return -1
end
local since, now = clock()
local first = take_fence(since)
local kept = kept_in(value)
if kept < now + ttl then
  kept = now + ttl + KEEP
  keep_until(kept)
end
if tonumber(count) > 1 then
  local last = string.format('%.0f', first + count - 1)
  redis.call('SET', watermark, last)
  kept = string.format('%.0f %s', kept, last)
end
hold(nonce, first, since, kept, ttl, about)
return tonumber(first)
