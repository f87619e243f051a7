-- Extend a lease to its ttl from now. Returns 1 if it still exists.
local nonce, kind, ttl = unpack(ARGV)
local value = redis.call('GET', lock)
if kind == 'x' then
  if not is_held_by(nonce, value) then
    return 0
  end
  local _, now = clock()
  -- The first write is PEXPIRE, because a server that is out of memory refuses a script whose first write is SET or
  -- ZADD.
  redis.call('PEXPIRE', lock, ttl)
  if kept_in(value) >= now + ttl then
    return 1
  end
  local kept = now + ttl + KEEP
  keep_until(kept)
  local fence, since, about = string.match(value, '^[^\n]*\n(%d+)\n(%d+)\n%d+[ %d]*\n(.*)')
  hold(nonce, fence, since, kept, ttl, about)
  return 1
end

