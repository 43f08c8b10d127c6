-- Levels (GCRA, token bucket, leaky bucket): what is owed, as of when, at how many units a token.
-- A microsecond drains `drain` units and a token costs `price`, both whole, so nothing is rounded.

local function save_level(key, state)
  local value = pack('<ddd', state[1], state[2], state[3])
  if state[4] == 0 then
    -- It never drains, so it is never idle.
    call('SET', key, value)
  else
    call('SET', key, value, 'PX', life(state[2] - now + ceil(state[1] / state[4])))
  end
end

-- The rate has changed: what is owed stays owed, in tokens, and is rounded up.
local function reprice(state, price, capacity)
  local tokens = floor(state[1] / state[3])
  local part = state[1] - tokens * state[3]
  local debt = tokens * price
  if part > 0 then debt = debt + floor(part / state[3] * price) + 1 end
  if debt > capacity then debt = capacity end
  state[1], state[3] = debt, price
end

-- The level as of now.
local function settled(key, price, drain, capacity)
  local state = states[key]
  if not state then
    local raw = kept(key, 24)
    if raw then
      local debt, as_of, was = unpack('<ddd', raw)
      -- What isn't a number passes no comparison.
      if debt >= 0 and debt <= MOST and as_of >= 0 and as_of <= MOST
        and (was == price or was > 0 and was <= MOST) then
        state = {debt, as_of, was, drain, false}
      else
        strange = strange + 1
      end
    end
    if not state then state = {0, now, price, drain, false} end
    states[key] = state
  end
  if state[3] ~= price then reprice(state, price, capacity) end
  state[4] = drain
  local debt, as_of = state[1], state[2]
  if as_of <= now then
    -- A product beyond 2^53 is rounded, and beyond any debt.
    debt = debt - drain * (now - as_of)
    if debt < 0 then debt = 0 end
    state[1], state[2] = debt, now
  elseif drain * (as_of - now) + debt > capacity then
    -- The clock is behind the one that this was written by. No wait is longer than a bucket's.
    if debt < capacity then state[1] = capacity end
    state[2] = now
    -- If it won't catch up soon, this is written whatever comes of the question, and drains from here on.
    if drain * (as_of - now) > capacity and not state.save and not state[5] then
      changed[#changed + 1], state.save, state[5] = key, save_level, true
    end
  end
  return state
end

-- How long until this cost passes: 0 if it does now, nothing if it never will.
local function look_at_level(key, cost, price, drain, capacity)
  local state = settled(key, price, drain, capacity)
  local units = cost * price
  if units > capacity then return nil end
  local over = units - (capacity - state[1])
  if over <= 0 then return 0 end
  if drain == 0 then return nil end
  return state[2] - now + ceil(over / drain)
end

local function left_of_level(key, price, drain, capacity)
  local state = states[key]
  if state[3] ~= price then settled(key, price, drain, capacity) end
  local debt, ahead = state[1], state[2] - now
  local remaining = floor((capacity - debt) / price)
  if remaining < 0 then remaining = 0 end
  if debt == 0 then return remaining, ahead end
  if drain == 0 then return remaining, -1 end
  return remaining, ahead + ceil(debt / drain)
end
