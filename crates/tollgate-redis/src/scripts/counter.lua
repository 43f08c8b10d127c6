-- Sliding counters: the count of this window and of the one before, which counts as far as it is still in view.

local counter = {}

local function save_counter(key, state)
  local windows = 0
  if state[3] > 0 then windows = 2 elseif state[2] > 0 then windows = 1 end
  local idle = state[1] + windows * state[4] - now
  call('SET', key, pack('<ddd', state[1], state[2], state[3]), 'PX', life(idle))
end

local function rolled(start, previous, current, length, at)
  local own = at - at % length
  if own <= start then return start, previous, current end
  if own == start + length then return own, current, 0 end
  return own, 0, 0
end

local function counts(key, length)
  local state = states[key]
  if not state then
    local raw = kept(key, 24)
    state = {0, 0, 0}
    if raw then
      local start, previous, current = unpack('<ddd', raw)
      if start >= 0 and start <= MOST and previous >= 0 and previous <= MOST
        and current >= 0 and current <= MOST then
        state[1], state[2], state[3] = start, previous, current
      else
        is_not_ours(key)
      end
    end
    states[key] = state
  end
  if state[1] > now + length then
    -- The clock is behind the one that wrote this: the counts become this window's.
    state[1] = now - now % length
    write(key, state, save_counter)
  end
  state[1], state[2], state[3] = rolled(state[1], state[2], state[3], length, now)
  state[4] = length
  return state
end

-- The most in a window that follows one with `previous`.
local function allowance(limit, burst, previous)
  if burst == limit or previous >= limit then return limit end
  return limit + floor((burst - limit) * (limit - previous) / limit)
end

-- How much of the window before is in view.
local function in_view(start, length, at)
  local since = at - start
  if since < 0 then return length end
  if since > length then return 0 end
  return length - since
end

-- The first time within a window, from `at` on, at which the cost passes.
local function within(start, previous, current, at, cost, limit, burst, length)
  local room = allowance(limit, burst, previous) - current - cost
  if room < 0 then return nil end
  if previous == 0 then return at end
  local view = floor(((room + 1) * length - 1) / previous)
  local seen = in_view(start, length, at)
  if view > seen then view = seen end
  if view == 0 then return nil end
  return start + length - view
end

function counter.look(key, cost, limit, burst, length)
  local state = counts(key, length)
  if cost == 0 then return 0 end
  if cost > burst then return nil end
  local start, previous, current = state[1], state[2], state[3]
  local from = now
  if from < start then from = start end
  local at = within(start, previous, current, from, cost, limit, burst, length)
  if at then
    -- A time before the window counts as its start, and may pass.
    if at == from then return 0 end
    return at - now
  end
  local next_start = start + length
  start, previous, current = rolled(start, previous, current, length, next_start)
  at = within(start, previous, current, next_start, cost, limit, burst, length)
  -- After two windows nothing is remembered.
  return (at or next_start + length) - now
end

function counter.charge(key, cost, _, _, _, length)
  local state = counts(key, length)
  state[3] = state[3] + cost
  write(key, state, save_counter)
end

-- How many count now.
local function estimated(state, length)
  return floor(state[2] * in_view(state[1], length, now) / length) + state[3]
end

-- At least this many count.
function counter.raise(key, count, _, _, _, length)
  local state = counts(key, length)
  local missing = count - estimated(state, length)
  if missing > 0 then counter.charge(key, missing, nil, nil, nil, length) end
end

function counter.left(key, limit, burst, length)
  local state = counts(key, length)
  local estimate = estimated(state, length)
  local remaining = allowance(limit, burst, state[2]) - estimate
  if remaining < 0 then remaining = 0 end
  local windows = 0
  if state[3] > 0 then windows = 2 elseif state[2] > 0 then windows = 1 end
  local reset = state[1] + windows * length - now
  if reset < 0 then reset = 0 end
  return remaining, reset
end

function counter.give_back(key, cost, since, _, _, length)
  local state = counts(key, length)
  local own = since - since % length
  local place
  if state[1] <= own then place = 3 elseif state[1] == own + length then place = 2 else return end
  state[place] = state[place] - cost
  if state[place] < 0 then state[place] = 0 end
  write(key, state, save_counter)
end

-- How long a charge can be refunded, in microseconds.
function counter.lasts(_, _, length)
  return 2 * length
end

function counter.gift(key, cost, _, _, length)
  if cost == 0 then return end
  local state = counts(key, length)
  local rest = cost - state[3]
  if rest <= 0 then
    state[3] = -rest
  else
    state[3] = 0
    state[2] = state[2] > rest and state[2] - rest or 0
  end
  write(key, state, save_counter)
end
