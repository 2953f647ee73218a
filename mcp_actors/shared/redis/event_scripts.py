"""The steps of the log of events, each atomic in Redis.

A session has two keys: a stream of its events, of all its streams, in their order, and a hash of its open streams' last
ids. An event has its stream's name, its id, the id of the event before it in its stream, its size and its data: so that
what follows an id is known exactly, also if the event with that id was dropped.
"""

from __future__ import annotations

from mcp_actors.shared.redis.link import Script

__all__ = ["AFTER", "APPEND", "BREAK", "BROKEN", "CLOSE", "DROP", "HEADS", "SCRIPTS"]

BROKEN = "!"
"""Stands for the last id of a stream with an event that was not kept."""

# The sum of the sizes of a session's events stands among its last ids, under a name that no stream has.
# Events, heads; entry, stream, id, id before, size, data; events, bytes, milliseconds.
APPEND = Script("""
local events, heads = ARGV[1], ARGV[2]
if redis.call('HGET', heads, ARGV[4]) == '!' then return 0 end
local last = redis.call('XREVRANGE', events, '+', '-', 'COUNT', 1)[1]
if last then
  local at, number = string.match(last[1], '(%d+)-(%d+)')
  local _, own = string.match(ARGV[3], '(%d+)-(%d+)')
  if tonumber(own) <= tonumber(number) then
    return #redis.call('XRANGE', events, ARGV[3], ARGV[3])
  end
end
redis.call('XADD', events, ARGV[3], 's', ARGV[4], 'i', ARGV[5], 'b', ARGV[6], 'n', ARGV[7], 'd', ARGV[8])
redis.call('HSET', heads, ARGV[4], ARGV[5])
local size = redis.call('HINCRBY', heads, '=', ARGV[7])
local count = redis.call('XLEN', events)
local oldest = tonumber(string.match(ARGV[3], '%d+')) - tonumber(ARGV[11])
while count > 0 do
  local first = redis.call('XRANGE', events, '-', '+', 'COUNT', 1)[1]
  if count <= tonumber(ARGV[9]) and size <= tonumber(ARGV[10])
    and tonumber(string.match(first[1], '%d+')) >= oldest then break end
  redis.call('XDEL', events, first[1])
  size = redis.call('HINCRBY', heads, '=', -tonumber(first[2][8]))
  count = count - 1
end
redis.call('PEXPIRE', events, ARGV[11])
redis.call('PEXPIRE', heads, ARGV[11])
return 1
""")

# Events, heads, id, stream, oldest milliseconds. Returns ids and data in turn, or nothing.
AFTER = Script("""
local head = redis.call('HGET', ARGV[2], ARGV[4])
if head == '!' then return false end
if head == ARGV[3] then return {} end
local rest, known = {}, false
for _, entry in ipairs(redis.call('XRANGE', ARGV[1], ARGV[5], '+')) do
  local fields = entry[2]
  if fields[2] == ARGV[4] then
    if known then
      rest[#rest + 1] = fields[4]
      rest[#rest + 1] = fields[10]
    elseif fields[4] == ARGV[3] then
      known = true
    elseif fields[6] == ARGV[3] then
      known = true
      rest[#rest + 1] = fields[4]
      rest[#rest + 1] = fields[10]
    end
  end
end
return known and rest
""")

# Heads, stream, milliseconds.
BREAK = Script("""
redis.call('HSET', ARGV[1], ARGV[2], '!')
redis.call('PEXPIRE', ARGV[1], ARGV[3])
""")

# Heads, stream.
CLOSE = Script("""
if redis.call('HGET', ARGV[1], ARGV[2]) ~= '!' then redis.call('HDEL', ARGV[1], ARGV[2]) end
""")

DROP = Script("redis.call('DEL', ARGV[1], ARGV[2])")

# Heads, milliseconds, streams and their last ids.
HEADS = Script("""
for i = 3, #ARGV, 2 do
  if redis.call('HGET', ARGV[1], ARGV[i]) ~= '!' then redis.call('HSET', ARGV[1], ARGV[i], ARGV[i + 1]) end
end
redis.call('PEXPIRE', ARGV[1], ARGV[2])
""")

SCRIPTS = (APPEND, AFTER, BREAK, CLOSE, DROP, HEADS)
