-- Leases of a level: a node takes tokens and spends them by itself. What is out doesn't drain, so tokens
-- in the bucket and tokens out are never more than the burst together, whatever the nodes do.
--
-- KEYS[1]  the level, and who has how much of it until when
-- ARGV[1]  doubles: price, drain and capacity of the level; who asks; how often it has asked, or 0; how
--          much it holds; how much of what it held it returns; how much more it wants; how much it may
--          hold at most; for how long; how much it must hold in the end, else it gets nothing: what isn't
--          enough would be kept from others; how many units are owed at least beside what is out, or 0;
--          and how many tokens of what is owed are forgiven: what is out stays out, and owed
-- ARGV[2]  the time in microseconds, or "" for this server's clock
--
-- A node says what it holds, not what it spent: a call that was lost or came twice changes nothing but
-- that tokens nobody knows of count as spent. One that comes after a later one of the same node is of no
-- consequence. The value is the level, then (holder, out, until, how often it had asked, for how long) of
-- each.
-- The reply: the time, whether the key isn't ours (1, and then nothing was done), how much was granted, how much of what it
-- holds it may keep, what is left, how long until as much as it must hold is there (-1: never), and for how
-- many nodes it is out.
--
-- Limits that differ are told as levels are (see level.lua): one judges by what is owed up to its capacity
-- as of then, less what drained since, and no less than what is out; and takes from what that leaves. All
-- that is owed stays owed. As of when is only moved by what changes it: who asks in vain loses nothing.

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

-- What is owed, in units that this limit is whole in too. If there are none, it stays in those that it was
-- written in, and is beyond this limit's capacity.
local all, p, d, c = in_common(owed, was, price, drain, capacity)
local unit, is_beyond = p, not all
if is_beyond then all, unit = owed, was end

-- What is owed at a time. What is out doesn't drain, so it is no less than that.
local function owed_at(time)
  local rest = all
  if time > as_of then
    local drained = d * (time - as_of)
    rest = all - (is_beyond and at_most(drained, p, unit) or drained)
  end
  if rest < out * unit then rest = out * unit end
  return rest
end

-- What a limit judges by, as of when that is owed.
local function judged()
  local debt = (is_beyond or all > c) and c or all
  return debt < out * p and out * p or debt
end

local is_written = false
for i = 1, #live do
  -- The clock is behind the one that this was written by: it lasts no longer than a new one of its node.
  if live[i][3] > now + live[i][5] then
    live[i][3], is_written = now + live[i][5], true
  end
end
table.sort(live, function(one, other) return one[3] < other[3] end)
-- Leases that have run out, one after the other: what was out stays owed, and drains from then on.
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
  -- The clock is behind here too: no wait is longer than a bucket's.
  if debt < c then debt = c end
  if not is_beyond and all < c then all = c end
  is_changed, as_of, ahead = d * ahead > c, now, 0
end

-- What this node says.
local mine
for i = 1, #live do
  if live[i][1] == own then mine = live[i] end
end
local taken = 0
if not mine then
  -- Not known, or not any more: what it holds is taken anew, as far as there is room.
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
  -- It has said something else since.
  holds, returns, wants, forgiven = mine[2], 0, 0, 0
end
if number > mine[4] then mine[4] = number end

-- The rest of what it had is spent.
local left = out + taken - mine[2] + holds
local rest = owed_at(now) + (taken - returns) * unit
debt = debt + (taken - returns) * p
if rest == 0 and left == 0 then
  -- Nothing is owed: no other limit's units have to be kept.
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
    -- It isn't any more: this limit's own units will do.
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
    -- What is out drains once it has run out.
    local ends = latest - now + ahead + ceil(all / unit * p / d)
    call('SET', key, table.concat(values), 'PX', life(ends))
  end
end

local needs = least > mine[2] and least - mine[2] or 1
local over, wait = needs * p - (c - debt), 0
if over > 0 then
  -- Where nothing comes back by itself, someone may return some.
  wait = drain == 0 and length or ahead + ceil(over / d)
end
-- Time alone may bring none: first some of what others hold has to come back, or run out. They may return
-- it sooner than time brings any, and by then it is known; what they don't have takes its time all the same.
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
