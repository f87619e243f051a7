-- Set the key with the ttl if it does not exist. The value names this ticket and its fence.
--
-- Returns {'granted', fence}; {'wait', remaining ms or -1, value of the key}; or {'withdrawn'} if this ticket was
-- released before: then this request was late, and no client waits for its reply.
local nonce, ttl = unpack(ARGV)
local mine = 'holdfast:setnx:' .. nonce .. ':'

local value = redis.call('GET', KEYS[1])
if value and string.sub(value, 1, #mine) ~= mine then
  return {'wait', redis.call('PTTL', KEYS[1]), string.sub(value, 1, 255)}
end
if redis.call('ZSCORE', KEYS[4], 'gone:' .. nonce) then
  return {'withdrawn'}
end
local time = redis.call('TIME')
local fence = string.format('%.0f', time[1] * 1000000 + time[2])
redis.call('SET', KEYS[1], mine .. fence, 'PX', ttl)
return {'granted', fence}
