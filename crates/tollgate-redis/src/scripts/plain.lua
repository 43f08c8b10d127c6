-- Answers requests that ask about levels alone, as most do: the same as decide.lua, without what only
-- others need. A record is whether it is the request's last, the cost, and the level's three numbers.

local FORMAT = '<Bdddd'
local questions = ARGV[1]
local size, place, number = #questions, 1, 0
local reply, told = {now, 0}, 2

while place <= size do
  local start, first, passes, last = place, number, true, 0
  local cost, price, drain, capacity
  while last == 0 do
    last, cost, price, drain, capacity, place = unpack(FORMAT, questions, place)
    number = number + 1
    local wait = look_at_level(KEYS[number], cost, price, drain, capacity)
    if wait == 0 then
      reply[told + 1], reply[told + 3] = 1, 0
    elseif wait then
      reply[told + 1], reply[told + 3], passes = 0, wait, false
    else
      reply[told + 1], reply[told + 3], passes = 2, -1, false
    end
    told = told + 4
  end
  local slot = told - 4 * (number - first)
  if number == first + 1 then
    local key = KEYS[number]
    if passes and cost > 0 then charge_level(key, cost, nil, price) end
    reply[slot + 2], reply[slot + 4] = left_of_level(key, price, drain, capacity)
  else
    local from = start
    for i = first + 1, number do
      last, cost, price, drain, capacity, from = unpack(FORMAT, questions, from)
      if passes and cost > 0 then charge_level(KEYS[i], cost, nil, price) end
    end
    from = start
    for i = first + 1, number do
      last, cost, price, drain, capacity, from = unpack(FORMAT, questions, from)
      reply[slot + 2], reply[slot + 4] = left_of_level(KEYS[i], price, drain, capacity)
      slot = slot + 4
    end
  end
end
