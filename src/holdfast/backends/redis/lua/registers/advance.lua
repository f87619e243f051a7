-- Advance a register to `number` and keep it for at least `keep_ms`. Returns 1 if it was lower, or if this call has set
-- it already, which the nonce shows.
--
--   register   hash   number: in decimal digits. nonce: of the call that set this number.
local nonce, number, keep_ms = unpack(ARGV)

-- Compare as text, because a Lua number loses the last digits of a long one.
local function is_less(left, right)
  if #left ~= #right then
    return #left < #right
  end
  return left < right
end

local last = redis.call('HMGET', KEYS[1], 'number', 'nonce')
if not is_less(last[1] or '0', number) then
  return last[1] == number and last[2] == nonce and 1 or 0
end
redis.call('HSET', KEYS[1], 'number', number, 'nonce', nonce)
if redis.call('PTTL', KEYS[1]) < tonumber(keep_ms) then
  redis.call('PEXPIRE', KEYS[1], keep_ms)
end
return 1
