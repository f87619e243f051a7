-- Delete the key if it has exactly this value. Returns 1 if it had.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
