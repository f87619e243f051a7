-- Write this fence into the holder's line. It can differ from the node's own count.
local function show_fence(nonce, fence)
  local line = redis.call('HGET', record, 'holder')
  local theirs, shown, behind = string.match(line or '', '^([^\n]*)\n([^\n]*)(\n.*)$')
  if theirs == nonce and shown ~= fence then
    redis.call('HSET', record, 'holder', nonce .. '\n' .. fence .. behind)
  end
end

