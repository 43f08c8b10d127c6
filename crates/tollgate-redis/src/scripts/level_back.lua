-- Levels among other kinds of limits, and giving back to them.

-- Asked after the look, so the level is as of now. Only a look by another rate changes its units.
local function charge_level(key, cost, _, price, drain, capacity)
  local state = states[key]
  if state[3] ~= price then settled(key, price, drain, capacity) end
  state[1] = state[1] + cost * price
  write(key, state, save_level)
end

local level = {look = look_at_level, charge = charge_level, left = left_of_level}

-- Gives back a charge of `since`, less what may have drained of it: never more than if it had not been.
function level.give_back(key, cost, since, price, drain, capacity)
  local units = cost * price
  if since < now then units = units - drain * (now - since) end
  local state = settled(key, price, drain, capacity)
  if units <= 0 then return end
  if units > state[1] then units = state[1] end
  state[1] = state[1] - units
  write(key, state, save_level)
end

function level.gift(key, cost, price, drain, capacity)
  level.give_back(key, cost, now, price, drain, capacity)
end
