-- Leases of a level: a node takes tokens and spends them by itself. What is out doesn't drain, so tokens
-- in the bucket and tokens out are never more than the burst together, whatever the nodes do.
--
-- KEYS[1]  the level, and who has how much of it until when
-- ARGV[1]  doubles: price, drain and capacity of the level; who asks; how often it has asked, or 0; how
--          much it holds; how much of what it held it returns; how much more it wants; how much it may
--          hold at most; for how long; how much it must hold in the end, else it gets nothing: what isn't
--          enough would be kept from others
-- ARGV[2]  the time in microseconds, or "" for this server's clock
--
-- A node says what it holds, not what it spent: a call that was lost or came twice changes nothing but
-- that tokens nobody knows of count as spent. One that comes after a later one of the same node is of no
-- consequence. The value is the level, then (holder, out, until, how often it had asked) of each.
-- The reply: the time, how many keys held something strange, how much was granted, how much of what it
-- holds it may keep, what is left, how long until one more is there (-1: never), and for how many nodes
-- it is out.

local key = KEYS[1]
local price, drain, capacity, own, number, holds, returns, wants, most, length, least =
  unpack('<ddddddddddd', ARGV[1])

local holders, out = {}, 0
local raw = kept(key)
if raw then
  local is_sound = #raw > 0 and #raw % 32 == 24
  if is_sound then
    local debt, as_of, was = unpack('<ddd', raw)
    is_sound = debt >= 0 and debt <= MOST and as_of >= 0 and as_of <= MOST
      and was > 0 and was <= MOST
    states[key] = {debt, as_of, was, drain}
    if is_sound and was ~= price then reprice(states[key], price, capacity) end
    for place = 25, #raw, 32 do
      local holder, amount, till, asked = unpack('<dddd', raw, place)
      is_sound = is_sound and holder == holder and amount >= 0 and amount <= MOST
        and till >= 0 and till <= MOST and asked >= 0 and asked <= MOST
      holders[#holders + 1] = {holder, amount, till, asked}
      out = out + amount
    end
  end
  if not is_sound then
    strange, states[key], holders, out = strange + 1, {0, now, price, drain}, {}, 0
  end
end
table.sort(holders, function(one, other) return one[3] < other[3] end)

-- What is out doesn't drain: at a time, no less is owed than that.
local function settle_at(time)
  local state = states[key]
  if state then
    local passed = time - state[2]
    if passed > 0 then
      state[1] = state[1] - drain * passed
      if state[1] < 0 then state[1] = 0 end
      state[2] = time
    end
    if state[1] < out * price then state[1] = out * price end
  end
end

-- Leases that have run out, one after the other: what was out stays owed, and drains from then on.
local live = {}
for i = 1, #holders do
  local holder = holders[i]
  if holder[3] <= now then
    settle_at(holder[3])
    out = out - holder[2]
  elseif holder[3] > now + 2 * length and holder[1] ~= own then
    -- The clock is behind the one that this was written by: it lasts no longer than a new one.
    holder[3] = now + length
    live[#live + 1] = holder
  else
    live[#live + 1] = holder
  end
end
local state = settled(key, price, drain, capacity)
if state[1] < out * price then state[1] = out * price end

-- What this node says.
local mine
for i = 1, #live do
  if live[i][1] == own then mine = live[i] end
end
if not mine then
  -- Not known, or not any more: what it holds is taken anew, as far as there is room.
  mine = {own, 0, 0, 0}
  live[#live + 1] = mine
  local room = floor((capacity - state[1]) / price)
  if holds > room then holds = room end
  if holds < 0 then holds = 0 end
  returns = 0
  state[1], out, mine[2] = state[1] + holds * price, out + holds, holds
end
if holds > mine[2] then holds = mine[2] end
if returns > mine[2] - holds then returns = mine[2] - holds end
local kept = holds
if number > 0 and number <= mine[4] then
  -- It has said something else since.
  holds, returns, wants = mine[2], 0, 0
end
if number > mine[4] then mine[4] = number end
-- The rest of what it had is spent.
out = out - mine[2] + holds
state[1] = state[1] - returns * price
if state[1] < out * price then state[1] = out * price end

local room = floor((capacity - state[1]) / price)
local granted = wants
if granted > room then granted = room end
if granted > most - holds then granted = most - holds end
if granted < 0 or holds + granted < least then granted = 0 end
state[1], out = state[1] + granted * price, out + granted
mine[2], mine[3] = holds + granted, now + length

local values, nodes, latest, soonest = {''}, 0, now, nil
for i = 1, #live do
  local holder = live[i]
  if holder[2] > 0 then
    nodes = nodes + 1
    values[nodes + 1] = pack('<dddd', holder[1], holder[2], holder[3], holder[4])
    if holder[3] > latest then latest = holder[3] end
    if holder ~= mine and not (soonest and soonest < holder[3]) then soonest = holder[3] end
  end
end
values[1] = pack('<ddd', state[1], state[2], price)
if drain == 0 then
  -- It never drains, so it is never idle.
  call('SET', key, table.concat(values))
else
  -- What is out drains once it has run out.
  local ends = latest - now + state[2] - now + ceil(state[1] / drain)
  call('SET', key, table.concat(values), 'PX', life(ends))
end

local over = price - (capacity - state[1])
local wait = 0
if over > 0 then
  -- Where nothing comes back by itself, someone may return some.
  wait = drain == 0 and length or state[2] - now + ceil(over / drain)
end
-- Time alone may bring none: first some of what others hold has to come back, or run out. They may return
-- it sooner than time brings any, and by then it is known.
if soonest and (out * price + price > capacity or soonest - now < wait) then wait = soonest - now end
local remaining = floor((capacity - state[1]) / price)
return {now, strange, granted, kept, remaining, wait, nodes}
