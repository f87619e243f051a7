-- Clients that did not respond when it was the turn of one of their tickets: pairs of a time and a channel, the latest
-- last.
local function silent_clients(text)
  return string.gmatch(text or '', '(%d+) ([^\n]*)\n')
end

-- The last time at which this client was found silent; nil if it was not.
local function silent_since(text, channel)
  local last
  for at, other in silent_clients(text) do
    last = other == channel and tonumber(at) or last
  end
  return last
end

