-- The channel of the client that has this line; nothing if the line names no command and channel of ours. Another client
-- has written it, perhaps with fewer rights than the one that runs this script, so it must not name anything else.
local function channel_in(line)
  local command, channel = string.match(line or '', '^[^\n]*\n[^\n]*\n[^\n]*\n(S?PUBLISH)[^\n]*\n([^\n]*wake[%-al]*:[%w.%-]+)\n')
  return channel, command
end

-- Returns how many connections have received it; nothing if the server cannot know. On a channel "wake-all:" it counts
-- the subscribers of one server only; and a client that has said "?" was not subscribed when it polled. A message may
-- fail: whether it arrives, and in time, decides nothing.
local function publish(line, message)
  local channel, command = channel_in(line)
  local received = channel and redis.pcall(command, channel, message)
  if received == 0 and (string.find(channel, 'wake-all:', 1, true) or string.find(line, 'PUBLISH?\n', 1, true)) then
    return nil
  end
  return type(received) == 'number' and received or nil
end

