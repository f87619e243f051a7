-- It is in, and nobody waits: by far the most frequent case, so it comes before all else.
local nonce, kind, unheard, signal = unpack(ARGV)
local value = redis.call('GET', lock)
if value == OURS .. nonce and unheard == '0' and signal == '' and redis.call('EXISTS', queue) == 0 then
  return redis.call('DEL', lock)
end

