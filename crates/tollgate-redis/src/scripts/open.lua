-- What every script begins with: the time, and what this call has read so far.
--
-- ARGV[1]  the questions, one record each (see decide.lua)
-- ARGV[2]  the time in microseconds, or "" for this server's clock
-- ARGV[3…] names of slots' holders, in the order of the questions that need one
--
-- All numbers are whole and below 2^53, where doubles are exact. A quotient of two such numbers is
-- rounded to the nearest double, and that never crosses a whole number: floor and ceil are exact.

local pack, unpack = struct.pack, struct.unpack
local floor, ceil, format = math.floor, math.ceil, string.format
local call, try = redis.call, redis.pcall

local now = tonumber(ARGV[2])
-- On a clock of the caller's, this server can't tell how fast time passes.
local shortest_life = 86400000
if not now then
  local time = call('TIME')
  now, shortest_life = time[1] * 1000000 + time[2], 1
end

-- By key, what is kept: read once, written once, however many questions of this call are about it.
local states, changed = {}, {}
-- Keys that hold what no script of ours has written, and how many: they are somebody else's, so nothing is
-- done to them, and who asks is told.
local foreign, strange = {}, 0

local function is_not_ours(key)
  if not foreign[key] then foreign[key], strange = true, strange + 1 end
end

-- Numbers that are kept are from 0 to this.
local MOST = 9007199254740992

-- What is kept under a key as `size` bytes, if that is what is there. A key that holds something else isn't
-- ours; any other error is for the caller to know, and nothing is decided.
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

-- How long a key lives, in milliseconds, if it is idle after so many microseconds. As text, which takes
-- less to make here than in the server.
local function life(micros)
  local millis = ceil(micros / 1000) + 1
  if millis < shortest_life then millis = shortest_life end
  return format('%d', millis)
end

-- What the request that is looked at asks of each key so far, and with this: none is looked for among the
-- others, so that a call takes as long as it has questions.
local asked = {}
local function in_all(key, cost)
  if cost == 0 then return 0 end
  local all = (asked[key] or 0) + cost
  asked[key] = all
  return all
end
