-- The channel of the client that sent these fields; nil if they do not name a command and a channel of holdfast. The
-- client may have fewer rights than the one that runs this script, so no other command may be run from them.
local function channel_in(about)
  local command, channel = string.match(about or '', '^(S?PUBLISH)[^\n]*\n([^\n]*wake[%-al]*:[%w.%-]+)\n')
  return channel, command
end

-- Whether a connection to this server is subscribed to this channel, to which this command publishes. False if the server
-- does not allow the question.
local function has_subscriber(channel, command)
  local reply = redis.pcall('PUBSUB', command == 'SPUBLISH' and 'SHARDNUMSUB' or 'NUMSUB', channel)
  return (tonumber(reply[2]) or 0) > 0
end

-- Returns how many connections received the message; nil if the server cannot know. On a channel "wake-all:" it counts
-- the subscribers of one server only, and a client with "?" was not subscribed when it polled. Publishing may fail:
-- correctness does not depend on whether or when a message arrives.
local function publish(about, message)
  local channel, command = channel_in(about)
  local received = channel and redis.pcall(command, channel, message)
  if received == 0 and (string.find(channel, 'wake-all:', 1, true) or string.find(about, '^S?PUBLISH%?')) then
    return nil
  end
  return type(received) == 'number' and received or nil
end

