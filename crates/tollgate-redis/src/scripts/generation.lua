-- Generations: a reset begins one, and what was charged in an earlier one isn't given back. Beside a counter that was
-- reset is a key that tells when, for as long as anything from before could be given back. A counter that wasn't has none,
-- and is of generation 0. What counters keep themselves stays as it is, so other versions read it.
--
-- KEYS after those of the questions: these keys, in the order of the questions that are about a generation.

-- As many questions as there are records, of three bytes and eight doubles each.
local reset_place = #ARGV[1] / 67

local function next_reset()
  reset_place = reset_place + 1
  return KEYS[reset_place]
end

-- The generation of a counter, by the key that tells when it was reset. What isn't a number there is somebody else's.
local function generation_of(reset)
  local raw = try('GET', reset)
  return type(raw) == 'string' and tonumber(raw) or 0
end

-- Begins one, which matters for so many microseconds. Two resets of the same time are two generations.
local function begin_generation(reset, micros)
  local before = generation_of(reset)
  call('SET', reset, format('%.0f', before >= now and before + 1 or now), 'PX', life(micros))
end

-- Whether what was charged then, in this generation or in one that isn't known (-1), is of the present one.
local function is_current(reset, generation, since)
  local present = generation_of(reset)
  if generation < 0 then return since > present end
  return present == 0 or present == generation
end
