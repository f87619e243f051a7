-- What the node has accepted as the state of a mark; '' if nothing.
return redis.call('HGET', KEYS[1], 'state') or ''
