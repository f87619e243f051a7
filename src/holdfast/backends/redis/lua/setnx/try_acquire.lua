-- Set the key if it is not there, for the ttl. The value names this ticket and its fence.
--
-- Returns {'in', fence}, {'wait', remaining ms or -1, what the key says}, or {'gone'} if this very ticket has left before:
-- then this request was late, and nobody waits for its answer.
local nonce, ttl = unpack(ARGV)
local mine = 'holdfast:setnx:' .. nonce .. ':'

local value = redis.call('GET', KEYS[1])
if value and string.sub(value, 1, #mine) ~= mine then
  return {'wait', redis.call('PTTL', KEYS[1]), string.sub(value, 1, 255)}
end
if redis.call('ZSCORE', KEYS[4], 'gone:' .. nonce) then
  return {'gone'}
end
local time = redis.call('TIME')
local fence = string.format('%.0f', time[1] * 1000000 + time[2])
redis.call('SET', KEYS[1], mine .. fence, 'PX', ttl)
return {'in', fence}
