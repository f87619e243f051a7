-- The number of a mark; '0' if there is none.
return redis.call('HGET', KEYS[1], 'number') or '0'
