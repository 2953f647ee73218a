"""The tasks, in Redis. Each step is a script, which is atomic and gets the root of all keys and the time first.

===================== ===============================================================================================
key                   content
===================== ===============================================================================================
``task:TASK``         hash: ``v`` the record, ``r`` its revision, ``t`` 1 if it is terminal, ``n`` its node, ``x`` the
                      time when it is dropped
``weight:OWNER``      hash: the weight of each task of an owner, and under ``=`` their sum
``order:OWNER``       sorted set: the tasks of an owner by creation; one that was dropped stays for an hour, so that a
                      page can begin behind it
``weights``           hash: number and bytes of all tasks
``expiry``, ``gone``  sorted sets: the times when tasks are dropped, and when they leave the order of their owner
``running:NODE``      set: the tasks that are not terminal and that a node runs
``nodes``             set: the nodes with such tasks
===================== ===============================================================================================
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import trio

from mcp_actors.abc.shared import TaskBounds, TaskRecord
from mcp_actors.shared.redis.link import Keys, RedisLink, Script, short
from mcp_actors.shared.sqlite_steps import read_record, read_records, stored_record

__all__ = ["ABANDONED", "CREATE", "GET", "PAGE", "REPLACE", "SCRIPTS", "RedisTaskStore"]

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


_Side = Literal["owner", "all"]
_OUTCOMES: dict[int, _Side | None] = {0: None, 1: "owner", 2: "all"}


class RedisTaskStore:
    """A `mcp_actors.abc.TaskStore` in Redis.

    Tasks survive their processes, and a restart of Redis as far as it is configured to keep what it has.

    Args:
        link: The connection.
        keys: The names of the keys.
        lease: Seconds for which every node may come back after an outage, before its tasks count as abandoned.
    """

    spans_processes = True
    survives = True

    def __init__(self, link: RedisLink, keys: Keys, lease: float) -> None:
        self._link = link
        self._keys = keys
        self._lease = lease

    def __repr__(self) -> str:
        return f"<RedisTaskStore {self._keys.root}>"

    async def create(self, record: TaskRecord, bounds: TaskBounds) -> Literal["owner", "all"] | None:
        """See `mcp_actors.abc.TaskStore.create`."""
        outcome = await self._run(
            CREATE, *_values(record), repr(record.created), *bounds, weight=record.weight
        )
        return _OUTCOMES[outcome]

    async def get(self, ids: Sequence[str]) -> Mapping[str, TaskRecord]:
        """See `mcp_actors.abc.TaskStore.get`."""
        found = await self._run(GET, *(short(id) for id in ids))
        pairs = [(id, read_record(data)) for id, data in zip(ids, found, strict=True) if data is not None]
        return {id: record for id, record in pairs if record is not None}

    async def replace(self, record: TaskRecord) -> bool:
        """See `mcp_actors.abc.TaskStore.replace`."""
        return bool(await self._run(REPLACE, *_values(record), weight=record.weight))

    async def page(self, owner: str, after: str | None, limit: int) -> Sequence[TaskRecord]:
        """See `mcp_actors.abc.TaskStore.page`. Nothing is behind a task that was dropped more than an hour ago."""
        found = await self._run(PAGE, short(owner), "" if after is None else short(after), limit)
        return read_records(found)

    async def abandoned(self, limit: int) -> Sequence[TaskRecord]:
        """See `mcp_actors.abc.TaskStore.abandoned`. After an outage, each node has the time of a lease to come back."""
        since = self._link.connected_at
        all_are_back = since is not None and trio.current_time() >= since + self._lease
        return read_records(await self._run(ABANDONED, limit, int(all_are_back)))

    async def _run(self, script: Script, *arguments: Any, weight: int = 0) -> Any:
        return await self._link.run_script(
            "tasks", script, self._keys.root, repr(time.time()), *arguments, weight=weight
        )


def _values(record: TaskRecord) -> tuple[Any, ...]:
    expiry = "" if record.ttl is None else repr(record.created + record.ttl)
    terminal = int(record.is_terminal)
    return (
        short(record.id),
        short(record.owner),
        stored_record(record),
        record.revision,
        terminal,
        record.node,
        expiry,
        record.weight,
    )
