-- Set the ttl of the key again if it belongs to this ticket. Returns 1 if it did.
local mine = 'holdfast:setnx:' .. ARGV[1] .. ':'
local value = redis.call('GET', KEYS[1])
if value and string.sub(value, 1, #mine) == mine then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
