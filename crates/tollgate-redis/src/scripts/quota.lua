-- Quotas: lots, each an amount and the time when it expires. A calendar quota has one lot; a rolling one has a
-- lot for each of 60 parts of its period. The key's time never goes back.

local function save_quota(key, state)
  if #state == 0 then
    -- Nothing counts any more.
    call('DEL', key)
    return
  end
  local parts = {pack('<d', state.latest)}
  for i = 1, #state do
    parts[i + 1] = pack('<dd', state[i][1], state[i][2])
  end
  call('SET', key, table.concat(parts), 'PX', life((state[#state] or {now})[1] - now))
end

-- The lots of a stored value; nil if it isn't ours.
local function read_lots(raw)
  -- A value has at least one lot: only counts that matter are written.
  if #raw < 24 or #raw % 16 ~= 8 then return nil end
  local state = {latest = unpack('<d', raw)}
  local is_sound = state.latest >= 0 and state.latest <= MOST
  for place = 9, #raw, 16 do
    local till, amount = unpack('<dd', raw, place)
    is_sound = is_sound and till >= 0 and till <= MOST and amount >= 0 and amount <= MOST
    state[#state + 1] = {till, amount}
  end
  return is_sound and state or nil
end

-- The stored state, with expired lots.
local function lots(key)
  local state = states[key]
  if not state then
    local raw = kept(key)
    state = raw and read_lots(raw)
    if not state then
      state = {latest = 0}
      if raw then is_not_ours(key) end
    end
    states[key] = state
  end
  return state
end

local function used(state)
  local sum = 0
  for i = 1, #state do sum = sum + state[i][2] end
  return sum
end

-- A quota by parts of time: `part(at, …)` is when a charge of that time expires, or nil if the query's
-- boundaries don't contain that time. `furthest` is how far ahead of now the key's time may be; nil if the
-- query's calendar doesn't contain now, so that the caller has to send another.
local function quota_of(part, furthest)
  local quota = {}

  -- The amount that counts at the key's time, that time, and when a charge then expires; nil if the query's
  -- boundaries don't contain it, or now.
  local function counted(key, a, b, c, d)
    local state, till, far = lots(key), part(now, a, b, c, d), furthest(a, b, c, d)
    if far and state.latest > now
      and (state.latest > now + far or not part(state.latest, a, b, c, d)) then
      -- The clock is behind the one that wrote this, by more than can be expressed: the amount counts as if it
      -- were charged now.
      state.latest = now
      for i = 1, #state do
        if state[i][1] > till then state[i][1] = till end
      end
      write(key, state, save_quota)
    end
    local at = state.latest > now and state.latest or now
    local live = {latest = state.latest, save = state.save}
    for i = 1, #state do
      if state[i][1] > at then live[#live + 1] = state[i] end
    end
    states[key] = live
    return live, at, till and part(at, a, b, c, d)
  end

  function quota.look(key, cost, limit, a, b, c, d)
    local state, _, till = counted(key, a, b, c, d)
    if not till then return false end
    if cost > limit then return nil end
    local missing = used(state) + cost - limit
    if cost == 0 or missing <= 0 then return 0 end
    for i = 1, #state do
      missing = missing - state[i][2]
      if missing <= 0 then return state[i][1] - now end
    end
    return nil
  end

  function quota.charge(key, cost, _, _, a, b, c, d)
    local state, at, till = counted(key, a, b, c, d)
    local newest = state[#state]
    if newest and newest[1] >= till then
      newest[2] = newest[2] + cost
    else
      state[#state + 1] = {till, cost}
    end
    if at > state.latest then state.latest = at end
    write(key, state, save_quota)
  end

  -- At least this much is used.
  function quota.raise(key, amount, _, limit, a, b, c, d)
    local state, _, till = counted(key, a, b, c, d)
    if not till then return false end
    local missing = amount - used(state)
    if missing > 0 then quota.charge(key, missing, nil, limit, a, b, c, d) end
  end

  function quota.left(key, limit, a, b, c, d)
    local state = counted(key, a, b, c, d)
    local remaining, reset = limit - used(state), 0
    if remaining < 0 then remaining = 0 end
    for i = 1, #state do
      if state[i][2] > 0 then reset = state[i][1] - now end
    end
    return remaining, reset
  end

  function quota.give_back(key, cost, since, _, a, b, c, d)
    local state = counted(key, a, b, c, d)
    local till = part(since, a, b, c, d)
    for i = #state, 1, -1 do
      if state[i][1] == till or not since then
        local back = cost < state[i][2] and cost or state[i][2]
        state[i][2], cost = state[i][2] - back, cost - back
        write(key, state, save_quota)
      end
    end
  end

  function quota.gift(key, cost, _, a, b, c, d)
    local state = counted(key, a, b, c, d)
    for i = #state, 1, -1 do
      local back = cost < state[i][2] and cost or state[i][2]
      state[i][2], cost = state[i][2] - back, cost - back
      write(key, state, save_quota)
    end
  end

  return quota
end

-- Between four boundaries that the caller has computed: of the period before, this one and the next.
local calendar = quota_of(function(at, a, b, c, d)
  if at < a or at >= d then return nil end
  return at < b and b or at < c and c or d
end, function(_, b, c)
  return now >= b and now < c and c - b or nil
end)

-- How long a charge can be refunded, in microseconds: until the end of the next period, to which it may be
-- charged if the key's time is ahead.
function calendar.lasts(_, _, _, _, after)
  return after > now and after - now or 1
end

local rolling = quota_of(function(at, length)
  local width = ceil(length / 60)
  return at - at % width + width + length
end, function(length)
  return length
end)

function rolling.lasts(_, length)
  return 2 * length
end
