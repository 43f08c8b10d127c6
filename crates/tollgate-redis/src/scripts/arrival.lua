-- Arrivals: one theoretical arrival time (TAT) for each key, whatever limit a query uses, as in redis-cell.
--
-- A request costs time: its tokens, each one emission interval of the limit long. It passes if the TAT after it
-- is no further ahead of now than the limit's tolerance. So a key has one state for all limits, and the state
-- is never cut to the limit of a query: what a larger limit let pass is owed under a smaller one, too.
--
-- Times are two numbers, whole microseconds and the nanoseconds beyond them (below 1000), because a double
-- holds no more than 104 days of nanoseconds. The five numbers of a query are the tolerance and the cost, two
-- each; the fifth is 0.
--
-- A state: the TAT's microseconds and nanoseconds, and the time as of which it was written.

local function save_arrival(key, state)
  call('SET', key, pack('<ddd', state[1], state[2], state[3]), 'PX', life(state[1] - now + 1))
end

local function read_arrival(key)
  local raw, state = kept(key, 24), nil
  if raw then
    local tat, nanos, as_of = unpack('<ddd', raw)
    -- NaN fails every comparison.
    if tat >= 0 and tat <= MOST and nanos >= 0 and nanos < 1000 and as_of >= 0 and as_of <= MOST then
      state = {tat, nanos, as_of}
    else
      is_not_ours(key)
    end
  end
  if not state then state = {now, 0, now} end
  states[key] = state
  if state[3] > now then
    -- The clock is behind the one that wrote this: the debt stays as it was then, and drains from here on.
    state[1], state[3] = state[1] - (state[3] - now), now
    write(key, state, save_arrival)
  end
  if state[1] < now then state[1], state[2] = now, 0 end
  return state
end

-- The difference of two times, with nanoseconds from 0 to 999: it is below zero if the microseconds are.
local function time_between(micros, nanos, less_micros, less_nanos)
  micros, nanos = micros - less_micros, nanos - less_nanos
  if nanos < 0 then return micros - 1, nanos + 1000 end
  return micros, nanos
end

local arrival = {}

function arrival.look(key, _, most, most_nanos, cost, cost_nanos)
  local state = states[key] or read_arrival(key)
  if time_between(most, most_nanos, cost, cost_nanos) < 0 then return nil end
  local over, nanos = time_between(state[1] - now + cost, state[2] + cost_nanos, most, most_nanos)
  if nanos > 999 then over, nanos = over + 1, nanos - 1000 end
  if over < 0 then return 0 end
  return nanos > 0 and over + 1 or over
end

function arrival.charge(key, _, _, _, _, cost, cost_nanos)
  local state = states[key] or read_arrival(key)
  local tat, nanos = state[1] + cost, state[2] + cost_nanos
  if nanos > 999 then tat, nanos = tat + 1, nanos - 1000 end
  state[1], state[2], state[3] = tat, nanos, now
  write(key, state, save_arrival)
end

-- How long until the whole limit is free again: nanoseconds below a microsecond, and whole microseconds.
function arrival.left(key)
  local state = states[key] or read_arrival(key)
  return state[2], state[1] - now
end

-- Refunds a charge of `since`, less what may have drained of it.
function arrival.give_back(key, _, since, _, _, cost, cost_nanos)
  local state = states[key] or read_arrival(key)
  if since < now then cost, cost_nanos = time_between(cost, cost_nanos, now - since, 0) end
  if cost < 0 then return end
  local tat, nanos = time_between(state[1], state[2], cost, cost_nanos)
  if tat < now then tat, nanos = now, 0 end
  state[1], state[2], state[3] = tat, nanos, now
  write(key, state, save_arrival)
end

-- How long a charge can be refunded, in microseconds.
function arrival.lasts(most)
  return most + 1
end

function arrival.gift(key, tokens, most, most_nanos, cost, cost_nanos)
  arrival.give_back(key, tokens, now, most, most_nanos, cost, cost_nanos)
end

-- At least this many microseconds are owed now.
function arrival.raise(key, _, micros)
  local state = states[key] or read_arrival(key)
  if state[1] - now >= micros then return end
  state[1], state[2], state[3] = now + micros, 0, now
  write(key, state, save_arrival)
end
