-- If the nonce of the record is `expected`, where '' stands for no record: replace it by a record with the nonce `new`,
-- kept for `keep_ms`, or remove it if `new` is ''. Returns 1 if the record is the new one now, else the nonce and the
-- payload of the record.
--
--   record   hash   nonce: of the call that wrote it. payload: text.
local expected, new, payload, keep_ms = unpack(ARGV)

local current = redis.call('HMGET', KEYS[1], 'nonce', 'payload')
local nonce = current[1] or ''
-- A repeated call writes its own record again, because replicas confirm writes only.
if nonce ~= expected and (new == '' or nonce ~= new) then
  return current
end
if new == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('HSET', KEYS[1], 'nonce', new, 'payload', payload)
  redis.call('PEXPIRE', KEYS[1], keep_ms)
end
return 1
