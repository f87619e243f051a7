-- A node's part in a mark that a majority of nodes agrees on. Returns {'yes', what the node has accepted before, or ''};
-- {'behind', round} if it has promised itself to a later ballot.
--
-- A ballot is a round and who asks; no two are the same. Asked without a state, the node promises to hear of no earlier
-- ballot any more. Asked with one, it accepts that, under the same condition.
--
--   a mark   hash   promise: "<round>:<by>", the last ballot that it said yes to.
--                   state: "<round>:<by>:<number>:<nonce>:<ms>", what it has accepted, and for how long it is to be kept.
local by, round, keep_ms, state = unpack(ARGV)

local known = redis.call('HMGET', KEYS[1], 'promise', 'state')
local their_round, they = string.match(known[1] or '0:', '^(%d+):(.*)$')
if tonumber(their_round) > tonumber(round) or (their_round == round and they > by) then
  return {'behind', their_round}
end
redis.call('HSET', KEYS[1], 'promise', round .. ':' .. by)
if state ~= '' then
  redis.call('HSET', KEYS[1], 'state', state)
end
if redis.call('PTTL', KEYS[1]) < tonumber(keep_ms) then
  redis.call('PEXPIRE', KEYS[1], keep_ms)
end
return {'yes', known[2] or ''}
