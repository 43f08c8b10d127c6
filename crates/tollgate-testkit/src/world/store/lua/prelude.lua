-- The environment of scripts: the deterministic parts of Lua, and the store's commands. Scripts can't change
-- it, so nothing of one call is left for the next.
--
-- Functions in Rust: `call` and `pcall` run a command; `pack` and `unpack` are those of `struct`; `plain`
-- converts any error to what a script would see; `line` is the script's present line.

local native = ...
local error, pcall, setmetatable, tostring, type, xpcall = error, pcall, setmetatable, tostring, type, xpcall

local function refuse()
  error('Attempt to modify a readonly table', 2)
end

local function sealed(of)
  return setmetatable({}, {__index = of, __newindex = refuse, __metatable = false})
end

local function single(field)
  return function(text)
    return {[field] = text}
  end
end

-- Neither is deterministic.
math.random, math.randomseed = nil, nil

local function outcome(passed, ...)
  if passed then return true, ... end
  local err = native.plain((...))
  if type(err) == 'table' and type(err.err) == 'string' then err = err.err end
  return false, err
end

local known = {
  assert = assert, error = error, ipairs = ipairs, next = next, pairs = pairs, rawequal = rawequal,
  rawget = rawget, select = select, tonumber = tonumber, tostring = tostring, type = type, unpack = unpack,
  math = sealed(math),
  string = sealed(string),
  table = sealed(table),
  struct = sealed({pack = native.pack, unpack = native.unpack}),
  redis = sealed({
    call = native.call,
    pcall = native.pcall,
    status_reply = single('ok'),
    error_reply = function(text)
      -- A text without a code gets one.
      text = text:gsub('^-', '')
      return {err = text:find(' ', 1, true) and text or 'ERR ' .. text}
    end,
  }),
  pcall = function(script, ...)
    return outcome(pcall(script, ...))
  end,
}

setmetatable(known, {
  __index = function(_, name)
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end,
})

local function explain(err)
  err = native.plain(err)
  if type(err) ~= 'table' then err = {err = 'ERR ' .. tostring(err)} end
  return {err = tostring(err.err), line = native.line()}
end

-- The environment, and the function that runs a script: whether it succeeded, and its result.
return sealed(known), function(script, keys, args)
  known.KEYS, known.ARGV = keys, args
  return xpcall(script, explain)
end
