-- Leases of a level: a node takes tokens and spends them by itself. Leased tokens don't drain, so tokens in the
-- bucket and tokens out are together never more than the burst, whatever the nodes do.
--
-- KEYS[1]  the level, and each holder's tokens with their expiry
-- ARGV[1]  doubles: price, drain and capacity of the level; the holder; the number of this request, or 0; how many
--          tokens it holds; how many of those it returns; how many more it requests; how many it may hold at most;
--          the duration of the lease; how many it must hold in the end, else it gets none, because too few tokens
--          would only be kept from others; how many units are owed at least beside what is out, or 0; and how many
--          owed tokens are forgiven: leased tokens stay out, and owed
-- ARGV[2]  the time in microseconds, or "" for this server's clock
--
-- A node reports what it holds, not what it spent. So a call that was lost or repeated changes nothing, except
-- that tokens of which no node knows count as spent. A call that arrives after a later one of the same node is
-- ignored. The value is the level, then (holder, tokens, expiry, number of its latest request, duration) of each.
-- The reply: the time, whether the key isn't ours (1, and then nothing was done), how many tokens were granted, how
-- many of its held tokens the node keeps, how many remain, how long until it can have as many as it must hold
-- (-1: never), and how many nodes hold tokens.
--
-- Limits that differ share a key as levels do (see level.lua): a limit decides by the debt up to its own
-- capacity, less what drained since, and no less than what is out; it grants what that leaves. The whole debt
-- stays owed. The time of the state moves only with a change, so denied requests lose nothing.

local key = KEYS[1]
local price, drain, capacity, own, number, holds, returns, wants, most, length, least, spent_at_least,
  forgiven = unpack('<ddddddddddddd', ARGV[1])

local owed, as_of, was, live, out = 0, now, price, {}, 0
local raw = kept(key)
if raw then
  local holders, is_sound = {}, #raw > 0 and #raw % 40 == 24
  if is_sound then
    owed, as_of, was = unpack('<ddd', raw)
    is_sound = owed >= 0 and owed <= MOST and as_of >= 0 and as_of <= MOST
      and was > 0 and was <= MOST
    for place = 25, #raw, 40 do
      local holder, amount, till, asked, lasts = unpack('<ddddd', raw, place)
      is_sound = is_sound and holder == holder and amount >= 0 and amount <= MOST
        and till >= 0 and till <= MOST and asked >= 0 and asked <= MOST and lasts >= 0 and lasts <= MOST
      holders[#holders + 1] = {holder, amount, till, asked, lasts}
      out = out + amount
    end
  end
  live = holders
  if not is_sound then is_not_ours(key) end
end
if foreign[key] then return {now, strange, 0, 0, 0, 0, 0} end

-- The debt, in units in which this limit's numbers are whole too. If there are none, it stays in the units that
-- it was written in, and is beyond this limit's capacity.
local all, p, d, c = in_common(owed, was, price, drain, capacity)
local unit, is_beyond = p, not all
if is_beyond then all, unit = owed, was end

-- The debt at a time. Leased tokens don't drain, so it is no less than they are.
local function owed_at(time)
  local rest = all
  if time > as_of then
    local drained = d * (time - as_of)
    rest = all - (is_beyond and at_most(drained, p, unit) or drained)
  end
  if rest < out * unit then rest = out * unit end
  return rest
end

-- The debt that a limit decides by, as of the time of the state.
local function judged()
  local debt = (is_beyond or all > c) and c or all
  return debt < out * p and out * p or debt
end

local is_written = false
for i = 1, #live do
  -- The clock is behind the one that wrote this: the lease lasts no longer than a new one of its node.
  if live[i][3] > now + live[i][5] then
    live[i][3], is_written = now + live[i][5], true
  end
end
table.sort(live, function(one, other) return one[3] < other[3] end)
-- Expired leases, one after the other: their tokens stay owed, and drain from their expiry on.
while live[1] and live[1][3] <= now do
  local ended = table.remove(live, 1)
  all = owed_at(ended[3])
  if ended[3] > as_of then as_of = ended[3] end
  out = out - ended[2]
end

local debt, ahead, is_changed = judged(), as_of - now, false
if ahead <= 0 then
  debt = debt + d * ahead
  if debt < out * p then debt = out * p end
  ahead = 0
elseif d * ahead + debt > c then
  -- The clock is behind here too: no wait is longer than a full bucket's.
  if debt < c then debt = c end
  if not is_beyond and all < c then all = c end
  is_changed, as_of, ahead = d * ahead > c, now, 0
end

-- This node's lease.
local mine
for i = 1, #live do
  if live[i][1] == own then mine = live[i] end
end
local taken = 0
if not mine then
  -- Unknown or expired: its tokens are taken anew, as far as there is room.
  taken = floor((c - debt) / p)
  if taken > holds then taken = holds end
  if taken < 0 then taken = 0 end
  mine = {own, taken, 0, 0, 0}
  live[#live + 1] = mine
  returns = 0
end
if holds > mine[2] then holds = mine[2] end
if returns > mine[2] - holds then returns = mine[2] - holds end
local keeps = holds
if number > 0 and number <= mine[4] then
  -- A later report of this node has arrived before.
  holds, returns, wants, forgiven = mine[2], 0, 0, 0
end
if number > mine[4] then mine[4] = number end

-- The rest of its earlier tokens is spent.
local left = out + taken - mine[2] + holds
local rest = owed_at(now) + (taken - returns) * unit
debt = debt + (taken - returns) * p
if rest == 0 and left == 0 then
  -- Nothing is owed, so no other limit's units have to be kept.
  p, d, c, unit, is_beyond = price, drain, capacity, price, false
end
is_changed = is_changed or taken > 0 or mine[2] > holds
if spent_at_least > 0 and not is_beyond then
  local level = spent_at_least * (p / price) + left * p
  if level > MOST then level = MOST end
  if rest < level then
    is_changed, rest = true, level
    if level > c then level = c end
    if debt < level then debt = level end
  end
end

if forgiven > 0 then
  -- Never below what is out: tokens in the bucket and tokens out stay within the burst.
  local before = rest
  rest = forgiven < MOST and rest - forgiven * unit or 0
  if rest < left * unit then rest = left * unit end
  if forgiven >= MOST then as_of, ahead = now, 0 end
  if is_beyond and rest / unit <= c / p then
    -- The debt is within this limit's capacity now, so its own units suffice.
    before, rest, unit, is_beyond = nil, ceil(rest / unit) * p, p, false
  end
  if not is_beyond and debt > rest then debt = rest end
  is_changed = is_changed or rest ~= before
end

local granted = floor((c - debt) / p)
if granted > wants then granted = wants end
if granted > most - holds then granted = most - holds end
if granted < 0 or holds + granted < least then granted = 0 end
mine[2], mine[3], mine[5] = holds + granted, now + length, length
if is_changed or granted > 0 then
  is_changed = true
  all, out = rest + granted * unit, left + granted
  if all < out * unit then all = out * unit end
  if as_of < now then as_of = now end
  debt = judged()
end

local values, nodes, latest, soonest, others = {''}, 0, now, nil, 0
for i = 1, #live do
  local holder = live[i]
  if holder[2] > 0 then
    nodes = nodes + 1
    values[nodes + 1] = pack('<ddddd', holder[1], holder[2], holder[3], holder[4], holder[5])
    if holder[3] > latest then latest = holder[3] end
    if holder ~= mine then
      others = others + holder[2]
      if not (soonest and soonest < holder[3]) then soonest = holder[3] end
    end
  end
end
if is_changed or is_written or mine[2] > 0 then
  if all > MOST then all = MOST end
  values[1] = pack('<ddd', all, as_of, unit)
  if drain == 0 then
    -- It never drains, so it is never idle.
    call('SET', key, table.concat(values))
  else
    -- Leased tokens drain after their lease has expired.
    local ends = latest - now + ahead + ceil(all / unit * p / d)
    call('SET', key, table.concat(values), 'PX', life(ends))
  end
end

local needs = least > mine[2] and least - mine[2] or 1
local over, wait = needs * p - (c - debt), 0
if over > 0 then
  -- Where nothing drains, another node may return some.
  wait = drain == 0 and length or ahead + ceil(over / d)
end
-- Draining alone may not suffice: other nodes' tokens have to come back or expire first. They may be returned
-- sooner, and the next query sees that. Whatever exceeds those tokens has to drain in any case.
if soonest then
  local back = soonest - now
  local rest_of_it = over - others * p
  if rest_of_it > 0 and drain > 0 then
    local takes = ahead + ceil(rest_of_it / d)
    if takes > back then back = takes end
  end
  if (out + needs) * p > c or back < wait then wait = back end
end
local remaining = floor((c - debt) / p)
if remaining < 0 then remaining = 0 end
return {now, strange, granted, keeps, remaining, wait, nodes}
