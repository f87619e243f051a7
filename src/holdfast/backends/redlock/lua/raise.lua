-- Raise this node's count to the highest count that the attempt got from other nodes. Returns 1, or 0 if the node's
-- vote is no longer exactly this one.
--
-- The vote is compared by nonce, attempt and count. Every vote has another count, so an equal one has not been lost and
-- given again in between.
local vote, target = unpack(ARGV)
if redis.call('GET', lock) ~= VOTE .. vote then
  return 0
end
if tonumber(redis.call('HGET', record, 'count') or 0) < tonumber(target) then
  redis.call('HSET', record, 'count', target)
end
if tonumber(redis.call('HGET', KEYS[5], 'count') or target) < tonumber(target) then
  redis.call('HSET', KEYS[5], 'count', target)
end
show_fence(string.match(vote, '^[^:]*'), target)
return 1
