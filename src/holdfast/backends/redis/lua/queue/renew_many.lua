-- Extend exclusive leases to their ttl from now. KEYS are the locks, ARGV has the nonce and the ttl of each. Returns a
-- reply for each: 1 if it was extended, 0 if it does not exist any more, 2 if renew_alone.lua has to extend it, because
-- the index and the keys of the waiters would end too early.
local _, now = clock()
local replies = {}
for number, name in ipairs(KEYS) do
  local nonce, ttl = ARGV[2 * number - 1], ARGV[2 * number]
  local value = redis.call('GET', name)
  if not is_held_by(nonce, value) then
    replies[number] = 0
  elseif kept_in(value) < now + ttl then
    replies[number] = 2
  else
    redis.call('PEXPIRE', name, ttl)
    replies[number] = 1
  end
end
return replies
