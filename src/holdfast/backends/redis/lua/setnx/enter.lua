-- Set the key if it is not there, for the ttl. The value names this ticket and its fence, so that no other key is needed.
--
-- Returns {'in', fence}, or {'wait', remaining ms or -1, what the key says}.
local nonce, ttl = unpack(ARGV)
local mine = 'holdfast:setnx:' .. nonce .. ':'

local value = redis.call('GET', KEYS[1])
if value and string.sub(value, 1, #mine) ~= mine then
  return {'wait', redis.call('PTTL', KEYS[1]), string.sub(value, 1, 255)}
end
local time = redis.call('TIME')
local fence = string.format('%.0f', time[1] * 1000000 + time[2])
redis.call('SET', KEYS[1], mine .. fence, 'PX', ttl)
return {'in', fence}
