-- The channel of the client that wrote this line; nil if the line does not name a command and a channel of holdfast.
-- The client that wrote it may have fewer rights than the one that runs this script, so no other command may be run
-- from it.
local function channel_in(line)
  local command, channel = string.match(line or '', '^[^\n]*\n[^\n]*\n[^\n]*\n(S?PUBLISH)[^\n]*\n([^\n]*wake[%-al]*:[%w.%-]+)\n')
  return channel, command
end

-- Returns how many connections received the message; nil if the server cannot know. On a channel "wake-all:" it counts
-- the subscribers of one server only, and a client with "?" in its line was not subscribed when it polled. Publishing
-- may fail: correctness does not depend on whether or when a message arrives.
local function publish(line, message)
  local channel, command = channel_in(line)
  local received = channel and redis.pcall(command, channel, message)
  if received == 0 and (string.find(channel, 'wake-all:', 1, true) or string.find(line, 'PUBLISH?\n', 1, true)) then
    return nil
  end
  return type(received) == 'number' and received or nil
end

