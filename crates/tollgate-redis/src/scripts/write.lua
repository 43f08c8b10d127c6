-- Marks a key as changed, to be written at the end.
local function write(key, state, save)
  if foreign[key] then return end
  if not state.save then
    changed[#changed + 1] = key
  end
  state.save = save
end
