-- Generations: a reset begins one, and charges of earlier generations aren't refunded. A counter that was reset
-- has a second key with the time of the reset, for as long as a charge from before could be refunded. Other
-- counters have none, and are of generation 0. The counters' own format stays as it is, so other versions can
-- read it.
--
-- KEYS after those of the queries: these second keys, in the order of the queries that need a generation.

-- As many queries as there are records, of three bytes and eight doubles each.
local reset_place = #ARGV[1] / 67

local function next_reset()
  reset_place = reset_place + 1
  return KEYS[reset_place]
end

-- The generation of a counter, by its second key. A value that isn't a number was written by another program.
local function generation_of(reset)
  local raw = try('GET', reset)
  return type(raw) == 'string' and tonumber(raw) or 0
end

-- Begins a generation that matters for this many microseconds. Two resets at the same time are two generations.
local function begin_generation(reset, micros)
  local before = generation_of(reset)
  call('SET', reset, format('%.0f', before >= now and before + 1 or now), 'PX', life(micros))
end

-- Whether a charge of this time and generation (-1: unknown) is of the present generation.
local function is_current(reset, generation, since)
  local present = generation_of(reset)
  if generation < 0 then return since > present end
  return present == 0 or present == generation
end
