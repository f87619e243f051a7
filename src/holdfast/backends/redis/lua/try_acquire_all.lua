-- Try to acquire several locks in order, up to the first one that is not granted. Returns the replies up to that one.
--
-- `step` is the unchanged script for one lock. It gets the keys and arguments of that lock only.
local function step(KEYS, ARGV)
--[[ the script for one ]]
end

local size = --[[ keys of a lock ]]
local count = #KEYS / size
local words = #ARGV / count
local replies = {}
for number = 1, count do
  local keys, arguments = {}, {}
  for index = 1, size do
    keys[index] = KEYS[size * (number - 1) + index]
  end
  for index = 1, words do
    arguments[index] = ARGV[words * (number - 1) + index]
  end
  replies[number] = step(keys, arguments)
  if type(replies[number]) == 'table' and replies[number][1] ~= 'granted' then
    break
  end
end
return replies
