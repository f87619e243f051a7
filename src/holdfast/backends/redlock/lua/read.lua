-- The accepted state of a register; '' if there is none.
return redis.call('HGET', KEYS[1], 'state') or ''
