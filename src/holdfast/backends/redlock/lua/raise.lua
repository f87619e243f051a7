-- Count up to what the attempt has been given elsewhere. Returns 1, or 0 if the vote is not exactly that one any more.
--
-- Nonce, attempt and count together: each vote has another count, so the vote was this attempt's all the time since.
local vote, target = unpack(ARGV)
if redis.call('GET', lock) ~= VOTE .. vote then
  return 0
end
if tonumber(redis.call('HGET', record, 'count') or 0) < tonumber(target) then
  redis.call('HSET', record, 'count', target)
end
if tonumber(redis.call('HGET', KEYS[6], 'count') or target) < tonumber(target) then
  redis.call('HSET', KEYS[6], 'count', target)
end
show_fence(string.match(vote, '^[^:]*'), target)
return 1
