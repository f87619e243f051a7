-- Let the key live for the ttl again if it is this ticket's. Returns 1 if it was.
local mine = 'holdfast:setnx:' .. ARGV[1] .. ':'
local value = redis.call('GET', KEYS[1])
if value and string.sub(value, 1, #mine) == mine then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 0
