-- The number of a register; '0' if it does not exist.
return redis.call('HGET', KEYS[1], 'number') or '0'
