-- The whole state of a lock, for `inspect` and `ls`. Of the value of another program only the beginning is read.
local _, now = clock()
local value = redis.call('GETRANGE', lock, 0, 255)
if string.sub(value, 1, #OURS) == OURS then
  value = redis.call('GET', lock)
end
return {
  now,
  value,
  redis.call('PTTL', lock),
  redis.call('HGETALL', sharers),
  redis.call('ZRANGE', shared, 0, -1, 'WITHSCORES'),
  redis.call('LRANGE', queue, 0, -1),
  redis.call('HGETALL', waiters),
}
