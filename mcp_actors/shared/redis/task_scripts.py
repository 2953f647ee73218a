"""The steps of the store of tasks, each atomic in Redis.

===================== ===============================================================================================
``task:TASK``         hash: ``v`` the record, ``r`` its revision, ``t`` 1 if it is terminal, ``n`` its node,
                      ``x`` the time when it is dropped
``weight:OWNER``      hash: the weight of each task of an owner, and under ``=`` their sum
``order:OWNER``       sorted set: the tasks of an owner by creation; one that was dropped stays for an hour, so that a
                      page can begin behind it
``weights``           hash: number and bytes of all tasks
``expiry``, ``gone``  sorted sets: the times when tasks are dropped, and when they leave the order of their owner
``running:NODE``      set: the tasks that are not terminal and that a node runs
``nodes``             set: the nodes with such tasks
===================== ===============================================================================================

Each script is given the root of all keys and the time as its first arguments.
"""

from __future__ import annotations

from mcp_actors.shared.redis.link import Script

__all__ = ["ABANDONED", "CREATE", "GET", "PAGE", "REPLACE", "SCRIPTS"]

_BEGIN = """
local call, root, now = redis.call, ARGV[1], tonumber(ARGV[2])
local function split(member) return string.match(member, '^(%S+) (%S+)$') end
local function live(task)
  local found = call('HMGET', root .. 'task:' .. task, 'v', 'x')
  if found[1] and (found[2] == '' or now < tonumber(found[2])) then return found[1] end
end
"""

# Drops some of those whose time is over: as many as keep up with any rate of creation.
_SWEEP = """
for _, member in ipairs(call('ZRANGEBYSCORE', root .. 'expiry', '-inf', now, 'LIMIT', 0, 32)) do
  local task, owner = split(member)
  local weight = call('HGET', root .. 'weight:' .. owner, task)
  if weight then
    call('HDEL', root .. 'weight:' .. owner, task)
    call('HINCRBY', root .. 'weight:' .. owner, '=', -tonumber(weight))
    call('HINCRBY', root .. 'weights', 'bytes', -tonumber(weight))
    call('HINCRBY', root .. 'weights', 'tasks', -1)
    if call('HLEN', root .. 'weight:' .. owner) == 1 then call('DEL', root .. 'weight:' .. owner) end
  end
  local node = call('HGET', root .. 'task:' .. task, 'n')
  if node then call('SREM', root .. 'running:' .. node, task) end
  call('DEL', root .. 'task:' .. task)
  call('ZREM', root .. 'expiry', member)
  call('ZADD', root .. 'gone', now + 3600, member)
end
for _, member in ipairs(call('ZRANGEBYSCORE', root .. 'gone', '-inf', now, 'LIMIT', 0, 32)) do
  local task, owner = split(member)
  call('ZREM', root .. 'order:' .. owner, task)
  call('ZREM', root .. 'gone', member)
end
"""

# Task, owner, record, revision, terminal, node, time when it is dropped, weight.
_KEEP = """
local task, owner, node = ARGV[3], ARGV[4], ARGV[8]
local function keep()
  local key, member = root .. 'task:' .. task, task .. ' ' .. owner
  call('HSET', key, 'v', ARGV[5], 'r', ARGV[6], 't', ARGV[7], 'n', node, 'x', ARGV[9])
  if ARGV[9] == '' then
    call('PERSIST', key)
    call('ZREM', root .. 'expiry', member)
  else
    call('PEXPIREAT', key, string.format('%.0f', (tonumber(ARGV[9]) + 3600) * 1000))
    call('ZADD', root .. 'expiry', ARGV[9], member)
  end
  local before = tonumber(call('HGET', root .. 'weight:' .. owner, task) or '0')
  call('HSET', root .. 'weight:' .. owner, task, ARGV[10])
  call('HINCRBY', root .. 'weight:' .. owner, '=', tonumber(ARGV[10]) - before)
  call('HINCRBY', root .. 'weights', 'bytes', tonumber(ARGV[10]) - before)
  if ARGV[7] == '0' then
    call('SADD', root .. 'nodes', node)
    call('SADD', root .. 'running:' .. node, task)
  end
end
"""

# Then: time of creation, and the four bounds. Returns 0, or 1 and 2 for the bounds of the owner and of all.
CREATE = Script(
    _BEGIN
    + _SWEEP
    + _KEEP
    + """
local size = tonumber(ARGV[10])
local count = math.max(call('HLEN', root .. 'weight:' .. owner) - 1, 0)
local weight = tonumber(call('HGET', root .. 'weight:' .. owner, '=') or '0')
if count >= tonumber(ARGV[12]) or weight + size > tonumber(ARGV[14]) then return 1 end
local all = call('HMGET', root .. 'weights', 'tasks', 'bytes')
if tonumber(all[1] or '0') >= tonumber(ARGV[13]) or tonumber(all[2] or '0') + size > tonumber(ARGV[15]) then
  return 2
end
keep()
call('HINCRBY', root .. 'weights', 'tasks', 1)
call('ZADD', root .. 'order:' .. owner, ARGV[11], task)
return 0
"""
)

REPLACE = Script(
    _BEGIN
    + _KEEP
    + """
local found = call('HMGET', root .. 'task:' .. task, 'r', 't', 'n')
if not live(task) or found[2] == '1' or tonumber(found[1]) ~= tonumber(ARGV[6]) - 1 then return 0 end
call('SREM', root .. 'running:' .. found[3], task)
keep()
return 1
"""
)

# Then the tasks.
GET = Script(
    _BEGIN
    + """
local records = {}
for i = 3, #ARGV do records[#records + 1] = live(ARGV[i]) or false end
return records
"""
)

# Owner, the task before the first or nothing, number of tasks.
PAGE = Script(
    _BEGIN
    + """
local order, limit, start = root .. 'order:' .. ARGV[3], tonumber(ARGV[5]), 0
if ARGV[4] ~= '' then
  local rank = call('ZRANK', order, ARGV[4])
  if not rank then return {} end
  start = rank + 1
end
local records = {}
while true do
  local tasks = call('ZRANGE', order, start, start + limit - 1)
  for _, task in ipairs(tasks) do
    if #records < limit then records[#records + 1] = live(task) end
  end
  start = start + limit
  if #tasks < limit or #records >= limit then return records end
end
"""
)

# Number of tasks; whether nodes count as gone that have not said so.
ABANDONED = Script(
    _BEGIN
    + """
local limit, records = tonumber(ARGV[3]), {}
for _, node in ipairs(call('SRANDMEMBER', root .. 'nodes', 256)) do
  if call('EXISTS', root .. 'node:' .. node) == 0
    and (ARGV[4] == '1' or call('EXISTS', root .. 'ended:' .. node) == 1) then
    for _, task in ipairs(call('SRANDMEMBER', root .. 'running:' .. node, limit)) do
      local record = live(task)
      if not record then call('SREM', root .. 'running:' .. node, task)
      elseif #records < limit then records[#records + 1] = record end
    end
    if call('SCARD', root .. 'running:' .. node) == 0 then call('SREM', root .. 'nodes', node) end
  end
end
return records
"""
)

SCRIPTS = (CREATE, REPLACE, GET, PAGE, ABANDONED)
