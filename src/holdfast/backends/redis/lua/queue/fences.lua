-- The time in microseconds and in milliseconds. The first is text, because a number with 16 digits would be rounded.
local function clock()
  local time = redis.call('TIME')
  return string.format('%s%06d', time[1], time[2]), time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Take the next fence: greater than all earlier ones of this server, and at least the time. So fences keep growing
-- after the watermark was lost, or an old copy of it was restored, and after the clock was set back.
local function take_fence(now_us)
  local last = redis.call('SET', watermark, now_us, 'GET')
  local number = tonumber(last or 0) or 0
  if number >= tonumber(now_us) then
    now_us = string.format('%.0f', number + 1)
    redis.call('SET', watermark, now_us)
  end
  return now_us
end

-- Whether this exclusive ticket holds the lock.
local function is_held_by(nonce, value)
  return value and string.find(value, OURS .. nonce .. '\n', 1, true) == 1
end

-- The field `kept` in the lock's value; 0 if an exclusive ticket of holdfast does not hold the lock.
local function kept_in(value)
  return tonumber(string.match(value or '', '^holdfast:queue2:[^\n]*\n%d+\n%d+\n(%d+)[ %d]*\n')) or 0
end

-- Keep the lock in the index, and the keys of its waiters, until this time.
local function keep_until(kept)
  redis.call('ZADD', index, kept, lock)
  redis.call('PEXPIREAT', queue, kept)
  redis.call('PEXPIREAT', waiters, kept)
end

-- Write the lock's key. This is the last write of a grant: if the server refuses an earlier one, no ticket is granted.
local function hold(nonce, fence, since, kept, ttl, about)
  local value = OURS .. nonce .. '\n' .. fence .. '\n' .. since .. '\n' .. kept .. '\n' .. about
  redis.call('SET', lock, value, 'PX', ttl)
end

