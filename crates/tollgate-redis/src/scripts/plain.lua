-- Answers requests that ask about levels alone, as most do: the same as decide.lua, without what only
-- others need. A record is whether it is the request's last, the cost, and the level's three numbers.

local FORMAT = '<Bdddd'
local questions = ARGV[1]
local size, place, number = #questions, 1, 0
local reply, told = {now, 0}, 2

-- The fifth of a state: whether it has to be written.
local function owe(key, state, units)
  state[1] = state[1] + units
  if not state[5] then
    changed[#changed + 1], state[5] = key, true
  end
end

-- Several questions of one request, from this place on.
local function answer_all(from)
  local first, start, passes, last = number, from, true, 0
  local cost, price, drain, capacity
  while last == 0 do
    last, cost, price, drain, capacity, from = unpack(FORMAT, questions, from)
    number = number + 1
    local wait = look_at_level(KEYS[number], in_all(first + 1, number, cost), price, drain, capacity)
    local slot = told + 4 * (number - first)
    if wait == 0 then
      reply[slot - 3], reply[slot - 2], reply[slot - 1], reply[slot] = 1, 0, 0, 0
    elseif wait then
      reply[slot - 3], reply[slot - 2], reply[slot - 1], reply[slot], passes = 0, 0, wait, 0, false
    else
      reply[slot - 3], reply[slot - 2], reply[slot - 1], reply[slot], passes = 2, 0, -1, 0, false
    end
  end
  local after = from
  from = start
  for i = first + 1, number do
    last, cost, price, drain, capacity, from = unpack(FORMAT, questions, from)
    if passes and cost > 0 then
      -- Only a look by another rate changes a level's units.
      local state = states[KEYS[i]]
      if state[3] ~= price then settled(KEYS[i], price, drain, capacity) end
      owe(KEYS[i], state, cost * price)
    end
  end
  from = start
  for i = first + 1, number do
    last, cost, price, drain, capacity, from = unpack(FORMAT, questions, from)
    reply[told + 2], reply[told + 4] = left_of_level(KEYS[i], price, drain, capacity)
    told = told + 4
  end
  return after
end

while place <= size do
  local last, cost, price, drain, capacity, after = unpack(FORMAT, questions, place)
  if last == 0 then
    place = answer_all(place)
  else
    -- One question, as most requests are: what look_at_level and left_of_level say, without asking twice.
    number, place = number + 1, after
    local key = KEYS[number]
    local state = settled(key, price, drain, capacity)
    local ahead, units = state[2] - now, cost * price
    local over = units - (capacity - state[1])
    local outcome, wait = 1, 0
    if over <= 0 then
      if cost > 0 then owe(key, state, units) end
    elseif units > capacity or drain == 0 then
      outcome, wait = 2, -1
    else
      outcome, wait = 0, ahead + ceil(over / drain)
    end
    local debt, reset = state[1], ahead
    local remaining = floor((capacity - debt) / price)
    if remaining < 0 then remaining = 0 end
    if debt > 0 then reset = drain > 0 and ahead + ceil(debt / drain) or -1 end
    reply[told + 1], reply[told + 2], reply[told + 3], reply[told + 4] = outcome, remaining, wait, reset
    told = told + 4
  end
end

-- What has changed is written once.
for i = 1, #changed do
  save_level(changed[i], states[changed[i]])
end
reply[2] = strange
return reply
