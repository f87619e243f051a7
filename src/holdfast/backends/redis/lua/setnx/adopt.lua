-- Replace the ticket in the key by another one, with a new fence. Returns the fence as text; '' if the key does not have
-- that ticket, or if the new one was released before.
local old, nonce, ttl = unpack(ARGV)
local value = redis.call('GET', KEYS[1]) or ''
local theirs, fence = string.match(value, '^holdfast:setnx:([^:]*):(%d+)$')
if theirs == nonce then  -- a repeated request
  redis.call('PEXPIRE', KEYS[1], ttl)
  return fence
end
if theirs ~= old or redis.call('ZSCORE', KEYS[4], 'gone:' .. nonce) then
  return ''
end
local time = redis.call('TIME')
fence = string.format('%.0f', math.max(fence + 1, time[1] * 1000000 + time[2]))
redis.call('SET', KEYS[1], 'holdfast:setnx:' .. nonce .. ':' .. fence, 'PX', ttl)
return fence
