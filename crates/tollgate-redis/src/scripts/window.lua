-- Fixed windows: the count since the window began. Windows begin at `phase` and multiples of their length after
-- it, or at the first hit if that is negative.

local window = {}

-- When the window ends. A window that began before the first boundary is cut off by the origin.
local function window_end(state, length, phase)
  if state[1] < phase then return phase end
  return state[1] + length
end

local function save_window(key, state)
  call('SET', key, pack('<dd', state[1], state[2]), 'PX', life(state[3] - now))
end

local function aligned(length, phase)
  if now < phase then return 0 end
  return now - (now - phase) % length
end

-- The present window. A time before it counts in it.
local function open_window(key, length, phase)
  local state = states[key]
  if not state then
    local raw = kept(key, 16)
    state = {0, 0}
    if raw then
      local start, count = unpack('<dd', raw)
      if start >= 0 and start <= MOST and count >= 0 and count <= MOST then
        state[1], state[2] = start, count
      else
        is_not_ours(key)
      end
    end
    states[key] = state
  end
  local start, count = state[1], state[2]
  if start > now + length then
    -- The clock is behind the one that wrote this: the count becomes this window's.
    start = phase < 0 and now or aligned(length, phase)
    write(key, state, save_window)
  elseif count == 0 or now >= window_end(state, length, phase) then
    if phase < 0 then
      start, count = now, 0
    elseif now >= start then
      start, count = aligned(length, phase), 0
    end
  end
  state[1], state[2] = start, count
  state[3] = window_end(state, length, phase)
  return state
end

function window.look(key, cost, limit, length, phase)
  if cost > limit then return nil end
  local state = open_window(key, length, phase)
  if cost == 0 or cost <= limit - state[2] then return 0 end
  return state[3] - now
end

function window.charge(key, cost, _, _, length, phase)
  local state = open_window(key, length, phase)
  state[2] = state[2] + cost
  write(key, state, save_window)
end

function window.left(key, limit, length, phase)
  local state = open_window(key, length, phase)
  local remaining = limit - state[2]
  if remaining < 0 then remaining = 0 end
  if state[2] == 0 then return remaining, 0 end
  return remaining, state[3] - now
end

-- At least this many passed in the present window.
function window.raise(key, count, _, _, length, phase)
  local state = open_window(key, length, phase)
  if count <= state[2] then return end
  state[2] = count
  write(key, state, save_window)
end

local function uncount(key, state, cost)
  if state[2] == 0 or cost == 0 then return end
  state[2] = state[2] > cost and state[2] - cost or 0
  write(key, state, save_window)
end

-- A charge of an earlier window isn't refunded to this one.
function window.give_back(key, cost, since, _, length, phase)
  local state = open_window(key, length, phase)
  if since >= state[1] then uncount(key, state, cost) end
end

-- How long a charge can be refunded, in microseconds.
function window.lasts(_, length)
  return length
end

function window.gift(key, cost, _, length, phase)
  uncount(key, open_window(key, length, phase), cost)
end
