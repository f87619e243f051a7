-- The fast path: the ticket holds the lock and no ticket waits, by far the most frequent case.
local nonce, kind, unanswered, signal = unpack(ARGV)
local value = redis.call('GET', lock)
local is_plain = value and unanswered == '0' and signal == '' and string.find(value, OURS .. nonce .. '\n', 1, true) == 1
local first = is_plain and redis.call('LPOP', queue)
if is_plain and not first then
  redis.call('ZREM', index, lock)
  return redis.call('DEL', lock)
end

