-- The nonce and the payload of a record; nils if it does not exist.
return redis.call('HMGET', KEYS[1], 'nonce', 'payload')
