-- Permits: a sorted set of their holders, scored by when each permit expires without a renewal. A member is the
-- holder's name, the number of its permit, and the duration of each renewal.

local slots = {}
local holder_place = 2

-- Every query about permits has a holder, whether it needs one or not.
local function next_holder()
  holder_place = holder_place + 1
  return ARGV[holder_place]
end

local function member(holder, number, length)
  return format('%s/%d/%.0f', holder, number, length)
end

-- Keeps the key as long as the permit that expires last.
local function keep(key)
  local last = call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
  call('PEXPIRE', key, life(tonumber(last) - now))
end

-- The clock may be behind the one that wrote the permits: they last no longer than if they were taken now.
local function shorten(key, length)
  local later = call('ZRANGEBYSCORE', key, format('(%.0f', now + length), '+inf', 'WITHSCORES')
  local is_shorter = false
  for i = 1, #later, 2 do
    local lasts = tonumber(string.match(later[i], '/(%d+)$') or length)
    if tonumber(later[i + 1]) > now + lasts then
      call('ZADD', key, now + lasts, later[i])
      is_shorter = true
    end
  end
  if is_shorter then keep(key) end
end

-- Whether a member and its score look like a holder and a time.
local function is_holder(member, score)
  score = tonumber(score)
  return string.find(member, '/%d+/%d+$') and score > -math.huge and score < math.huge
end

-- How many permits are held. Another program's set is recognized by its first and its last member, however many
-- are between.
local function in_use(key, length)
  local last = try('ZRANGE', key, -1, -1, 'WITHSCORES')
  if last.err then
    if not string.find(last.err, 'WRONGTYPE', 1, true) then call('ZRANGE', key, -1, -1) end
    is_not_ours(key)
  elseif #last > 0 then
    local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')
    if not (is_holder(first[1], first[2]) and is_holder(last[1], last[2])) then is_not_ours(key) end
  end
  if foreign[key] or #last == 0 then return 0 end
  local count = call('ZCOUNT', key, format('(%.0f', now), '+inf')
  if count > 0 then shorten(key, length) end
  return count
end

-- The reply of a command about a member; nil if the key has another type. Any other error is returned to the
-- caller.
local function ask(command, key, name)
  local said = try(command, key, name)
  if type(said) ~= 'table' then return said end
  if not string.find(said.err, 'WRONGTYPE', 1, true) then call(command, key, name) end
  return nil
end

local function is_held(key, name)
  local till = ask('ZSCORE', key, name)
  return till and tonumber(till) > now
end

-- A permit in use is free again when its holder releases it, so no time can be reported. A holder that repeats
-- a query without a reply may have its permit already.
function slots.look(key, cost, limit, length, _, _, _, holder)
  local others = in_use(key, length)
  if cost > limit then return nil end
  if cost == 0 then return 0 end
  if others + cost <= limit then return 0 end
  for number = 1, cost do
    if is_held(key, member(holder, number, length)) then others = others - 1 end
  end
  return 0, others + cost > limit
end

function slots.charge(key, cost, holder, _, length)
  if cost == 0 or foreign[key] then return end
  call('ZREMRANGEBYSCORE', key, '-inf', format('%.0f', now))
  for number = 1, cost do
    call('ZADD', key, now + length, member(holder, number, length))
  end
  keep(key)
end

function slots.left(key, limit, length)
  local remaining = limit - in_use(key, length)
  if remaining < 0 then remaining = 0 end
  return remaining, 0
end

-- Renews permits. One that has expired, or was lost, is taken again if there is room. Returns how many are
-- held.
function slots.renew(key, cost, holder, limit, length)
  local held = 0
  for number = 1, cost do
    local name = member(holder, number, length)
    local is_free = in_use(key, length) < limit
    if foreign[key] then return 0 end
    if is_held(key, name) or is_free then
      call('ZADD', key, now + length, name)
      held = held + 1
    end
  end
  if held > 0 then keep(key) end
  return held
end

function slots.release(key, cost, holder, _, length)
  for number = 1, cost do
    ask('ZREM', key, member(holder, number, length))
  end
end

-- Permits are held, not used up: there is nothing to raise.
function slots.raise() end
