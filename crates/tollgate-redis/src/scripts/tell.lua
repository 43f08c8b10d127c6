-- The reply: the time, how many keys aren't ours, and four numbers for each query.

local reply, told = {now, 0}, 2

local function say(key, outcome, remaining, wait, reset)
  if foreign[key] then outcome, remaining, wait, reset = 4, 0, 0, 0 end
  reply[told + 1], reply[told + 2], reply[told + 3], reply[told + 4] = outcome, remaining, wait, reset
  told = told + 4
end

-- The reply about a cost that would first pass after this wait.
local function tell(key, wait, busy, remaining, reset)
  if wait == nil then
    say(key, 2, remaining, -1, reset)
  elseif wait == false then
    say(key, 3, remaining, 0, reset)
  elseif wait > 0 then
    say(key, 0, remaining, wait, reset)
  else
    say(key, busy and 0 or 1, remaining, 0, reset)
  end
end
