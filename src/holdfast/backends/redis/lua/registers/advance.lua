-- Raise a mark to a number, and keep it for that long at least. Returns 1 if it was lower, or is this very call's
-- already: by its nonce.
--
--   a mark   hash   number: in decimal digits. nonce: of the call that has raised it to that.
local nonce, number, keep_ms = unpack(ARGV)

-- As text: in Lua's own numbers the last digits of a long one would be lost.
local function is_less(some, other)
  if #some ~= #other then
    return #some < #other
  end
  return some < other
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
