-- Slots: a sorted set of who holds one, scored by when that runs out unless it is renewed.

local slots = {}
local holder_place = 2

local function next_holder()
  holder_place = holder_place + 1
  return ARGV[holder_place]
end

local function in_use(key)
  local count = try('ZCOUNT', key, '(' .. string.format('%.0f', now), '+inf')
  if type(count) == 'table' then
    if not string.find(count.err, 'WRONGTYPE', 1, true) then call('ZCOUNT', key, '-inf', '+inf') end
    strange = strange + 1
    call('DEL', key)
    return 0
  end
  return count
end

-- What a command says of a member; nothing if the key holds something else. Any other error is for the
-- caller to know.
local function ask(command, key, member)
  local said = try(command, key, member)
  if type(said) ~= 'table' then return said end
  if not string.find(said.err, 'WRONGTYPE', 1, true) then call(command, key, member) end
  return nil
end

local function is_held(key, member)
  local till = ask('ZSCORE', key, member)
  return till and tonumber(till) > now
end

-- A slot that is in use is free again when its holder says so: there is no time to tell. One who asks
-- again, for want of an answer, may have his already.
function slots.look(key, cost, limit)
  if cost > limit then return nil end
  if cost == 0 then return 0 end
  local others = in_use(key)
  if others + cost <= limit then return 0 end
  local own = ARGV[holder_place + 1]
  for number = 1, cost do
    if is_held(key, own .. '/' .. number) then others = others - 1 end
  end
  return 0, others + cost > limit
end

-- Lets the key live as long as the slot that runs out last.
local function keep(key)
  local last = call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
  call('PEXPIRE', key, life(tonumber(last) - now))
end

function slots.charge(key, cost, holder, _, length)
  if cost == 0 then return end
  call('ZREMRANGEBYSCORE', key, '-inf', string.format('%.0f', now))
  for number = 1, cost do
    call('ZADD', key, now + length, holder .. '/' .. number)
  end
  keep(key)
end

function slots.left(key, limit)
  local remaining = limit - in_use(key)
  if remaining < 0 then remaining = 0 end
  return remaining, 0
end

-- Holds on for as long again. Says how many of the slots were still held.
function slots.renew(key, cost, holder, _, length)
  local held = 0
  for number = 1, cost do
    local member = holder .. '/' .. number
    if is_held(key, member) then
      call('ZADD', key, now + length, member)
      held = held + 1
    end
  end
  if held > 0 then keep(key) end
  return held
end

function slots.release(key, cost, holder)
  for number = 1, cost do
    ask('ZREM', key, holder .. '/' .. number)
  end
end
