-- Have the line that names the holder show this fence: a node's own count need not be it.
local function show_fence(nonce, fence)
  local line = redis.call('HGET', record, 'holder')
  local theirs, shown, behind = string.match(line or '', '^([^\n]*)\n([^\n]*)(\n.*)$')
  if theirs == nonce and shown ~= fence then
    redis.call('HSET', record, 'holder', nonce .. '\n' .. fence .. behind)
  end
end

