-- Sliding logs: a sorted set with one member for each instant with a hit, scored by its time. A member is
-- `sum:weight`: the sum of all weights up to it. So the weight of any part of the log is a difference of two
-- sums, however long the part is.

local log = {}

-- The sum and the weight of a member; nil if the member isn't ours.
local function parsed(member)
  local sum, weight = string.match(member, '^(%d+):(%d+)$')
  if not sum or tonumber(sum) > MOST or tonumber(weight) > MOST then return nil end
  return tonumber(sum), tonumber(weight)
end

local function add(key, at, sum, weight)
  call('ZADD', key, at, string.format('%.0f:%.0f', sum, weight))
end

-- Keeps the key as long as its newest hit counts. Removing the last member removes the key and its expiry, so
-- this follows every write.
local function keep_log(key, newest, length)
  call('PEXPIRE', key, life(newest + length - now))
end

-- The newest hit and the oldest that counts: time, sum and weight of each; nil if none counts.
local function hits(key, length)
  local newest = try('ZRANGE', key, -1, -1, 'WITHSCORES')
  if newest.err then
    if not string.find(newest.err, 'WRONGTYPE', 1, true) then call('ZRANGE', key, -1, -1) end
    is_not_ours(key)
    return nil
  end
  if #newest == 0 then return nil end
  local at = tonumber(newest[2])
  local sum, weight = parsed(newest[1])
  -- NaN would pass for a time far ahead.
  if not sum or not (at >= 0 and at <= MOST) then
    is_not_ours(key)
    return nil
  end
  local reached = at > now and at or now
  local oldest = call('ZRANGEBYSCORE', key, '(' .. string.format('%.0f', reached - length), '+inf',
    'WITHSCORES', 'LIMIT', 0, 1)
  if #oldest == 0 then return {at = at, sum = sum, weight = weight, used = 0} end
  local first, first_weight = parsed(oldest[1])
  if not first then
    is_not_ours(key)
    return nil
  end
  local used, since = sum - first + first_weight, tonumber(oldest[2])
  if at > now + length then
    -- The clock is behind the one that wrote this: all hits count from now on.
    call('DEL', key)
    add(key, now, used, used)
    keep_log(key, now, length)
    at, since, sum, weight, first, first_weight = now, now, used, used, used, used
  end
  return {
    at = at, sum = sum, weight = weight, used = used,
    oldest = since, first = first, first_weight = first_weight,
  }
end

function log.look(key, cost, limit, length)
  local found = hits(key, length)
  if cost > limit then return nil end
  if cost == 0 then return 0 end
  if not found or found.used + cost <= limit then return 0 end
  -- There is enough room once the hit with this sum, or the first after it, has expired.
  local needed = found.first - found.first_weight + found.used + cost - limit
  if found.first >= needed then return found.oldest + length - now end
  local low = call('ZRANK', key, string.format('%.0f:%.0f', found.first, found.first_weight)) + 1
  local high = call('ZCARD', key) - 1
  while low < high do
    local middle = floor((low + high) / 2)
    local sum = parsed(call('ZRANGE', key, middle, middle)[1])
    if not sum then
      is_not_ours(key)
      return 0
    end
    if sum >= needed then
      high = middle
    else
      low = middle + 1
    end
  end
  return tonumber(call('ZRANGE', key, low, low, 'WITHSCORES')[2]) + length - now
end

function log.charge(key, cost, _, limit, length)
  if cost == 0 then return end
  local found = hits(key, length)
  if foreign[key] then return end
  if not found or found.used == 0 then
    call('DEL', key)
    add(key, now, cost, cost)
  else
    local at = found.at > now and found.at or now
    call('ZREMRANGEBYSCORE', key, '-inf', string.format('%.0f', at - length))
    if found.at == at then
      -- One member for each instant.
      call('ZREMRANGEBYSCORE', key, at, at)
      add(key, at, found.sum + cost, found.weight + cost)
    else
      add(key, at, found.sum + cost, cost)
    end
  end
  keep_log(key, found and found.at > now and found.at or now, length)
end

function log.left(key, limit, length)
  local found = hits(key, length)
  if not found then return limit, 0 end
  local remaining = limit - found.used
  if remaining < 0 then remaining = 0 end
  local reset = found.at + length - now
  if reset < 0 then reset = 0 end
  return remaining, reset
end

-- At least this much is logged: the difference as of now.
function log.raise(key, weight, _, limit, length)
  local found = hits(key, length)
  local missing = weight - (found and found.used or 0)
  if missing > 0 then log.charge(key, missing, nil, limit, length) end
end

-- Removes weight from the newest hits.
local function strike(key, weight)
  while weight > 0 do
    local newest = call('ZRANGE', key, -1, -1, 'WITHSCORES')
    if #newest == 0 then return end
    local at = tonumber(newest[2])
    local sum, own = parsed(newest[1])
    if not sum then return is_not_ours(key) end
    call('ZREM', key, newest[1])
    if own > weight then
      add(key, at, sum - weight, own - weight)
      return
    end
    weight = weight - own
  end
end

-- Removes a hit where it was logged, if it still is. The sums of later hits fall by as much.
function log.give_back(key, cost, since, _, length)
  local found = hits(key, length)
  if not found then return end
  local later = call('ZRANGEBYSCORE', key, '(' .. string.format('%.0f', since), '+inf', 'WITHSCORES')
  local own = call('ZRANGEBYSCORE', key, since, since)
  if #own == 0 then return end
  local sum, weight = parsed(own[1])
  if not sum then return is_not_ours(key) end
  for i = 1, #later, 2 do
    if not parsed(later[i]) then return is_not_ours(key) end
  end
  local back = cost < weight and cost or weight
  call('ZREM', key, own[1])
  if weight > back then add(key, since, sum - back, weight - back) end
  for i = 1, #later, 2 do
    local its_sum, its_weight = parsed(later[i])
    call('ZREM', key, later[i])
    add(key, later[i + 1], its_sum - back, its_weight)
  end
  keep_log(key, found.at, length)
end

-- How long a charge can be refunded, in microseconds.
function log.lasts(_, length)
  return length
end

function log.gift(key, cost, _, length)
  local found = cost > 0 and hits(key, length)
  if not found then return end
  strike(key, cost)
  keep_log(key, found.at, length)
end
