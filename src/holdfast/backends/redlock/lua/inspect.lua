-- The whole state of a lock on this node.
return {
  now,
  redis.call('GETRANGE', lock, 0, 255),
  redis.call('PTTL', lock),
  redis.call('HGETALL', record),
  redis.call('ZRANGE', queue, 0, -1),
  redis.call('ZRANGE', leases, 0, -1, 'WITHSCORES'),
}
