-- Renew a lease with a range of fences, give up all of them but the one in use, and store the caller that uses it.
-- Returns 1 if the lease still exists.
local nonce, ttl, fence, about = unpack(ARGV)
local value = redis.call('GET', lock)
if not is_held_by(nonce, value) then
  return 0
end
local _, now = clock()
-- The first write is PEXPIRE, because a server that is out of memory refuses a script whose first write is SET or
-- ZADD.
redis.call('PEXPIRE', lock, ttl)
local first, since, last = string.match(value, '^[^\n]*\n(%d+)\n(%d+)\n%d+ ?(%d*)\n')
-- A request that was delayed does not replace a later range.
if last ~= '' and tonumber(first) <= tonumber(fence) and tonumber(fence) <= tonumber(last) then
  local kept = now + ttl + KEEP
  keep_until(kept)
  hold(nonce, fence, since, kept, ttl, about)
end
return 1
