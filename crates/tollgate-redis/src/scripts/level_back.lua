-- Levels among other kinds of limits; refunds and raises.

local level = {look = look_at_level, charge = charge_level, left = left_of_level}

-- Refunds a charge of `since`, less what may have drained of it: never more than if the charge had not been.
function level.give_back(key, cost, since, price, drain, capacity)
  local _, ahead, all, p, d, _, booked = level_at(key, price, drain, capacity)
  local units, state = cost * p, states[key]
  if since < now then units = units - d * (now - since) end
  if units <= 0 then return end
  if all then
    all = all > units and all - units or 0
    state[1], state[2], state[3], state[4] = all, now + ahead, p, d
    state[6] = booked < all and booked or all
  else
    local was = state[3]
    local back = at_most(units, p, was)
    state[1], state[4] = state[1] > back and state[1] - back or 0, d / p * was
    if state[6] > state[1] then state[6] = state[1] end
  end
  mark(key, state)
end

-- How long a charge can be refunded, in microseconds. A level that never drains has no such time; a day is
-- assumed to suffice.
function level.lasts(_, drain, capacity)
  return drain > 0 and ceil(capacity / drain) or 86400000000
end

function level.gift(key, cost, price, drain, capacity)
  level.give_back(key, cost, now, price, drain, capacity)
end

-- At least this much is owed now, in the limit's own units.
function level.raise(key, _, units, price, drain, capacity)
  local _, ahead, all, p, d, _, booked = level_at(key, price, drain, capacity)
  -- A debt that can't be expressed is larger.
  if not all then return end
  units = units * (p / price)
  if units > MOST then units = MOST end
  if all + d * ahead >= units then return end
  local state = states[key]
  state[1], state[2], state[3], state[4], state[6] = units, now, p, d, booked
  mark(key, state)
end
