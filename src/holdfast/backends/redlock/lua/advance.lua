-- The acceptor of a register that a majority of nodes agrees on (CASPaxos). Returns {'yes', the state accepted before
-- or ''}, or {'behind', round} if the node has promised a later ballot.
--
-- A ballot is a round and the name of its proposer, so no two ballots are equal. Without a state this is the prepare
-- phase: the node promises to refuse earlier ballots. With a state it is the accept phase, under the same condition.
--
--   register   hash   promise: "<round>:<by>", the last ballot that the node answered with yes.
--                     state: "<round>:<by>:<number>:<nonce>:<ms>", the accepted state, and how long to keep it.
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
