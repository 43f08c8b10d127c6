-- The beginning of every script: the time, and what this call has read so far.
--
-- ARGV[1]  the queries, one record each (see decide.lua)
-- ARGV[2]  the time in microseconds, or "" for this server's clock
-- ARGV[3…] names of permits' holders, in the order of the queries that need one
--
-- All numbers are whole and below 2^53, where doubles are exact. A quotient of two such numbers is rounded to
-- the nearest double, and that never crosses a whole number: floor and ceil are exact.

local pack, unpack = struct.pack, struct.unpack
local floor, ceil, format = math.floor, math.ceil, string.format
local call, try = redis.call, redis.pcall

local now = tonumber(ARGV[2])
-- With a caller's clock, this server can't know how fast that time passes.
local shortest_life = 86400000
if not now then
  local time = call('TIME')
  now, shortest_life = time[1] * 1000000 + time[2], 1
end

-- The state of each key: read once, written once, however many queries of this call are about it.
local states, changed = {}, {}
-- Keys whose value no script of ours has written, and how many. They belong to another program, so nothing is
-- done to them, and the reply reports them.
local foreign, strange = {}, 0

local function is_not_ours(key)
  if not foreign[key] then foreign[key], strange = true, strange + 1 end
end

-- Stored numbers are from 0 to this.
local MOST = 9007199254740992

-- The value of a key, if it is `size` bytes. A key with another value isn't ours. Any other error is returned
-- to the caller, and nothing is decided.
local function kept(key, size)
  local raw = try('GET', key)
  if not raw then return nil end
  if type(raw) == 'string' then
    if #raw == size or not size then return raw end
  elseif not string.find(raw.err, 'WRONGTYPE', 1, true) then
    call('GET', key)
  end
  is_not_ours(key)
  return nil
end

-- The expiry of a key that is idle after this many microseconds, in milliseconds. As text, which is cheaper to
-- make here than in the server.
local function life(micros)
  local millis = ceil(micros / 1000) + 1
  if millis < shortest_life then millis = shortest_life end
  return format('%d', millis)
end

-- What the present request takes of each key so far, this query included. Looked up by key and not searched
-- for, so a call's work is proportional to its queries.
local asked = {}
local function in_all(key, cost)
  if cost == 0 then return 0 end
  local all = (asked[key] or 0) + cost
  asked[key] = all
  return all
end
