-- It is in, and nobody waits: by far the most frequent case, so it comes before all else.
local nonce, kind, unheard, signal = unpack(ARGV)
local value = redis.call('GET', lock)
local is_plain = value == OURS .. nonce and unheard == '0' and signal == ''
local first = is_plain and redis.call('ZRANGE', queue, 0, 0)[1]
if is_plain and not first then
  return redis.call('DEL', lock)
end

