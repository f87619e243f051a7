-- Grant the lock at once to the first ticket in the queue, if it is exclusive, accepts hand-overs and has polled within
-- POLL_INTERVAL. The message carries the fence, which saves the new holder a round trip.
--
-- If the client has no subscription on this server, no message with a fence is sent. PUBLISH returns how many
-- connections to this server received a message, but the message also reaches connections to its replicas and to other
-- nodes of a Cluster. After a failover a client may still be subscribed there, and would hold a lock whose grant was
-- undone here.
--
-- A server that is out of memory refuses none of these writes: the script has removed an element before, and Redis does
-- not stop a script half-way.
if first then
  local since, now = clock()
  local kept = kept_in(value)
  local entry, silent = unpack(redis.call('HMGET', waiters, first, SILENT_CLIENTS))
  local lapses, about, ttl = string.match(entry or '', '^x\n%d+\n(%d+)\n%-?%d+\n(%a+ (%d+)\n.*)')
  local polled_at = about and lapses - WAITER_LEASE
  local channel, command = channel_in(about)
  local is_live = channel and polled_at > now - POLL_INTERVAL
    and polled_at >= (silent and silent_since(silent, channel) or 0)
  if is_live and has_subscriber(channel, command) then
    local fence = take_fence(since)
    if kept < now + ttl then
      kept = now + ttl + KEEP
      keep_until(kept)
    end
    local message, fields = first .. ' ' .. fence, kept
    local start, count, rest
    if string.find(about, '\n{"waiting": ', 1, true) then  -- costs less than the match
      start, count, rest = string.match(about, '^([^\n]*\n[^\n]*\n[^\n]*\n{)"waiting": (%d+), (.*)')
    end
    if start then
      -- Callers of that client wait for its turn: reserve fences for them, as extend_turn.lua does.
      count = math.min(tonumber(count), 63)
      local last = string.format('%.0f', fence + count)
      redis.call('SET', watermark, last)
      fields = string.format('%.0f %s', kept, last)
      local client = string.match(rest, '^(.-), "meta": ')  -- the user's meta may have a key "caller" too
      if client then
        rest = string.gsub(client, ', "caller": "[^"]*"', '', 1) .. string.sub(rest, #client + 1)
      end
      about = start .. rest
      message = string.format('%s %d', message, count)
    end
    hold(first, fence, since, fields, ttl, about)
    local received = redis.pcall(command, channel, message)
    if type(received) == 'number' and received > 0 then
      redis.call('HDEL', waiters, first)
      return 1
    end
    -- The message was not allowed, so it was not sent. The rest of this script deletes the key.
  end
  redis.call('LPUSH', queue, first)
  redis.call('PEXPIREAT', queue, math.max(kept, now + WAITER_LEASE))
end

