-- Levels (GCRA, token bucket, leaky bucket): the debt, its time, and the units in a token. A microsecond drains
-- `drain` units and a token costs `price`, both whole, so nothing is rounded.
--
-- The stored debt is never cut to the limit of a query, as a larger limit may have written it: another process,
-- another tier, an earlier policy. A limit decides by no more than its own capacity as of that time, and an
-- admission keeps the whole debt. So no window sees more than the largest burst and the fastest rate of the
-- limits that were queried in it, and no request waits longer than its own bucket takes.
--
-- A state: the debt, its time, the units in a token, the drain of the limit that wrote it, whether it has to be
-- written, how much of it is reserved ahead (which counts for every limit), and whether the key isn't ours.

local function save_level(key, state)
  local debt, as_of, booked = state[1], state[2], state[6]
  if booked > debt then booked = debt end
  local value = booked > 0 and pack('<dddd', debt, as_of, state[3], booked)
    or pack('<ddd', debt, as_of, state[3])
  if state[4] == 0 then
    -- It never drains, so it is never idle.
    call('SET', key, value)
  else
    call('SET', key, value, 'PX', life(as_of - now + ceil(debt / state[4])))
  end
end

local function mark(key, state)
  if not state[5] and not foreign[key] then
    changed[#changed + 1], state[5], state.save = key, true, save_level
  end
end

local function read_level(key, price)
  local raw, state = kept(key), nil
  if raw then
    local debt, as_of, was, booked = nil, nil, nil, 0
    if #raw == 24 then
      debt, as_of, was = unpack('<ddd', raw)
    elseif #raw == 32 then
      debt, as_of, was, booked = unpack('<dddd', raw)
    end
    -- NaN fails every comparison.
    if debt and debt >= 0 and debt <= MOST and as_of >= 0 and as_of <= MOST
      and was > 0 and was <= MOST and booked >= 0 and booked <= debt then
      state = {debt, as_of, was, 0, false, booked}
    else
      is_not_ours(key)
    end
  end
  if not state then state = {0, now, price, 0, false, 0, foreign[key]} end
  states[key] = state
  return state
end

-- The level as a limit sees it: the debt that it decides by, how far ahead of now that is, the whole debt (nil
-- if that can't be expressed), the limit's numbers in the same units, and what is reserved. A state that was
-- just charged needs no second adjustment to the clock.
local function level_at(key, price, drain, capacity, is_charged)
  local state = states[key] or read_level(key, price)
  local all, ahead, booked = state[1], state[2] - now, state[6]
  local p, d, c = price, drain, capacity
  if state[3] ~= price then
    local up
    all, p, d, c, up = in_common(all, state[3], price, drain, capacity)
    if booked > 0 then booked = up and booked * up or at_most(booked, state[3], p) + 3 end
  end
  local debt = all
  if not all or all > c + booked then debt = c + booked end
  if ahead <= 0 then
    -- A product beyond 2^53 is rounded, and is beyond any debt.
    local drained = -d * ahead
    debt = debt > drained and debt - drained or 0
    booked = booked > drained and booked - drained or 0
    if all then
      all = all > drained and all - drained or 0
      if all == 0 then p, d, c = price, drain, capacity end
    end
    ahead = 0
  elseif not is_charged and d * ahead + debt > c then
    -- The clock is behind the one that wrote this. No wait is longer than a full bucket's.
    local is_far = d * ahead > c
    if debt < c then debt = c end
    if all and all < c then all = c end
    ahead = 0
    -- If the clock won't catch up soon, the state is written whatever the decision, and drains from here on.
    if is_far then
      state[2], state[4] = now, d / p * state[3]
      if all then state[1], state[3], state[4], state[6] = all, p, d, booked end
      mark(key, state)
    end
  end
  return debt, ahead, all, p, d, c, booked
end

-- How long until this cost passes: 0 if it does now, nil if it never will.
local function look_at_level(key, cost, price, drain, capacity)
  local debt, ahead, _, p, d, c = level_at(key, price, drain, capacity)
  local units = cost * p
  if units > c then return nil end
  local over = units - (c - debt)
  if over <= 0 then return 0 end
  if d == 0 then return nil end
  return ahead + ceil(over / d)
end

local function charge_level(key, cost, _, price, drain, capacity)
  local debt, ahead, all, p, d, c, booked = level_at(key, price, drain, capacity)
  local state, over = states[key], debt + cost * p - c
  if over < booked then over = booked end
  if all then
    state[1], state[3], state[4], state[6] = all + cost * p, p, d, over
  else
    -- The debt stays in the units that it was written in.
    local was = state[3]
    local drained = state[2] < now and at_most(d * (now - state[2]), p, was) or 0
    state[1] = (state[1] > drained and state[1] - drained or 0) + cost * was
    state[4], state[6] = d / p * was, over > 0 and at_most(over, p, was) or 0
  end
  if state[1] > MOST then state[1] = MOST end
  state[2] = now + ahead
  mark(key, state)
end

local function left_of_level(key, price, drain, capacity, _, _, is_charged)
  local debt, ahead, all, p, d, c = level_at(key, price, drain, capacity, is_charged)
  local remaining = floor((c - debt) / p)
  if remaining < 0 then remaining = 0 end
  if all == 0 then return remaining, ahead end
  if d == 0 then return remaining, -1 end
  if not all then all = states[key][1] / states[key][3] * p end
  return remaining, ahead + ceil(all / d)
end
