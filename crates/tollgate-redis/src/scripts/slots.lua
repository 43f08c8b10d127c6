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

-- A slot that is in use is free again when its holder says so: there is no time to tell.
function slots.look(key, cost, limit, length)
  if cost > limit then return nil end
  if cost == 0 or in_use(key) + cost <= limit then return 0 end
  -- A slot that lasts longer than any is of a clock that was ahead: it lasts as long as a new one.
  local ahead = call('ZRANGEBYSCORE', key, '(' .. string.format('%.0f', now + 2 * length), '+inf')
  for i = 1, #ahead do
    call('ZADD', key, now + length, ahead[i])
  end
  return 0, true
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
    local till = call('ZSCORE', key, member)
    if till and tonumber(till) > now then
      call('ZADD', key, now + length, member)
      held = held + 1
    end
  end
  if held > 0 then keep(key) end
  return held
end

function slots.release(key, cost, holder)
  for number = 1, cost do
    call('ZREM', key, holder .. '/' .. number)
  end
end
