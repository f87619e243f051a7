-- Enter several locks in turn, up to the first that has to wait. Returns the answers until then.
--
-- `step` is the script for one lock, word for word, with its own keys and arguments in place of all.
local function step(KEYS, ARGV)
--[[ the script for one ]]
end

local count = #KEYS / 5
local words = #ARGV / count
local replies = {}
for number = 1, count do
  local keys, arguments = {}, {}
  for place = 1, 5 do
    keys[place] = KEYS[5 * (number - 1) + place]
  end
  for place = 1, words do
    arguments[place] = ARGV[words * (number - 1) + place]
  end
  replies[number] = step(keys, arguments)
  if type(replies[number]) == 'table' and replies[number][1] ~= 'in' then
    break
  end
end
return replies
