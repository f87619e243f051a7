-- The fast path: the ticket holds the lock and no ticket waits, by far the most frequent case.
local nonce, kind, unanswered, signal = unpack(ARGV)
local value = redis.call('GET', lock)
local is_plain = value == OURS .. nonce and unanswered == '0' and signal == ''
local first = is_plain and redis.call('ZRANGE', queue, 0, 0)[1]
if is_plain and not first then
  return redis.call('DEL', lock)
end

