-- Answers requests with queries about levels alone, as most have: the same as decide.lua, without what only
-- other kinds need. A record is whether it is the request's last, the cost, and the level's three numbers.

local FORMAT = '<Bdddd'
local questions = ARGV[1]
local size, place, number = #questions, 1, 0
local reply, told = {now, 0}, 2

-- Several queries of one request, from this position on.
local function answer_all(from)
  local first, start, passes, last = number, from, true, 0
  asked = {}
  local cost, price, drain, capacity
  while last == 0 do
    last, cost, price, drain, capacity, from = unpack(FORMAT, questions, from)
    number = number + 1
    local wait = look_at_level(KEYS[number], in_all(KEYS[number], cost), price, drain, capacity)
    local slot = told + 4 * (number - first)
    if foreign[KEYS[number]] then
      reply[slot - 3], reply[slot - 2], reply[slot - 1], reply[slot], passes = 4, 0, 0, 0, false
    elseif wait == 0 then
      reply[slot - 3], reply[slot - 2], reply[slot - 1], reply[slot] = 1, 0, 0, 0
    elseif wait then
      reply[slot - 3], reply[slot - 2], reply[slot - 1], reply[slot], passes = 0, 0, wait, 0, false
    else
      reply[slot - 3], reply[slot - 2], reply[slot - 1], reply[slot], passes = 2, 0, -1, 0, false
    end
  end
  local after, charged = from, {}
  from = start
  for i = first + 1, number do
    last, cost, price, drain, capacity, from = unpack(FORMAT, questions, from)
    if passes and cost > 0 then
      charge_level(KEYS[i], cost, nil, price, drain, capacity)
      charged[KEYS[i]] = true
    end
  end
  from = start
  for i = first + 1, number do
    last, cost, price, drain, capacity, from = unpack(FORMAT, questions, from)
    reply[told + 2], reply[told + 4] = left_of_level(KEYS[i], price, drain, capacity, nil, nil, charged[KEYS[i]])
    told = told + 4
  end
  return after
end

while place <= size do
  local last, cost, price, drain, capacity, after = unpack(FORMAT, questions, place)
  if last == 0 then
    place = answer_all(place)
  else
    -- One query, as most requests have.
    number, place = number + 1, after
    local key = KEYS[number]
    local state = states[key] or read_level(key, price)
    local debt, ahead = state[1], state[2] - now
    if debt > capacity or state[3] ~= price or ahead > 0 or state[6] > 0 or state[7] then
      -- Another limit, another clock or another program wrote it, or something is reserved ahead.
      local wait = look_at_level(key, cost, price, drain, capacity)
      local outcome = state[7] and 4 or wait == 0 and 1 or wait and 0 or 2
      local is_charged = wait == 0 and cost > 0
      if is_charged then charge_level(key, cost, nil, price, drain, capacity) end
      local remaining, reset = left_of_level(key, price, drain, capacity, nil, nil, is_charged)
      reply[told + 1], reply[told + 2], reply[told + 3], reply[told + 4] = outcome, remaining, wait or -1, reset
    else
      -- The same as look_at_level, charge_level and left_of_level, in one step.
      debt = debt + drain * ahead
      if debt < 0 then debt = 0 end
      local units = cost * price
      local over, outcome, wait, reset = units - (capacity - debt), 1, 0, 0
      if over <= 0 then
        if cost > 0 then
          debt = debt + units
          state[1], state[2], state[4] = debt, now, drain
          if not state[5] then
            changed[#changed + 1], state[5] = key, true
          end
        end
      elseif units > capacity or drain == 0 then
        outcome, wait = 2, -1
      else
        outcome, wait = 0, ceil(over / drain)
      end
      if debt > 0 then reset = drain > 0 and ceil(debt / drain) or -1 end
      reply[told + 1], reply[told + 2] = outcome, floor((capacity - debt) / price)
      reply[told + 3], reply[told + 4] = wait, reset
    end
    told = told + 4
  end
end

-- Each changed key is written once.
for i = 1, #changed do
  save_level(changed[i], states[changed[i]])
end
reply[2] = strange
return reply
