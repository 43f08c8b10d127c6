
-- Each changed key is written once.
for i = 1, #changed do
  local key = changed[i]
  local state = states[key]
  if state and state.save then
    state.save(key, state)
    state.save = nil
  end
end
reply[2] = strange
return reply
