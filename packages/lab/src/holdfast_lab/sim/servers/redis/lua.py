"""Runs the shipped scripts in a real Lua 5.1, with `redis`, KEYS, ARGV and the sandbox of Redis.

The conversions between Lua and RESP are those of Redis ("Lua API reference", data type conversion): numbers are
truncated to integers in replies, nil is false, a status is a table with `ok`, an array ends at its first nil.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from lupa import lua51

from holdfast_lab.sim.servers.redis.commands import Refused, Reply, Status

Caller = Callable[[list[bytes]], Reply]

# The globals of a script. Reading another global or writing any is an error, as in Redis. Functions of Redis that no
# script uses are missing; when one is added, a test compares it with a real server.
_SANDBOX = """
local raw_call = ...
local redis = {}

function redis.call(...)
  local reply = raw_call(...)
  if type(reply) == 'table' and reply.err then
    error(reply.err, 0)  -- a string for pcall, in Redis 7.0
  end
  return reply
end

function redis.pcall(...)
  return raw_call(...)
end

function redis.error_reply(text)
  return {err = string.find(text, ' ', 1, true) and text or 'ERR ' .. text}
end

function redis.status_reply(text)
  return {ok = text}
end

local seen = {
  redis = redis, string = string, table = table, tonumber = tonumber, tostring = tostring, type = type, pairs = pairs,
  ipairs = ipairs, next = next, select = select, unpack = unpack, pcall = pcall, error = error, assert = assert,
  math = {floor = math.floor, ceil = math.ceil, max = math.max, min = math.min, abs = math.abs, huge = math.huge,
          fmod = math.fmod, modf = math.modf},
}
setmetatable(seen, {
  __index = function(_, name)
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end,
  __newindex = function()
    error('Attempt to modify a readonly table', 2)
  end,
})

local function compile(text)
  local script, problem = loadstring(text, '@user_script')
  if script then
    setfenv(script, seen)
  end
  return script, problem
end

local function run(script, keys, arguments)
  rawset(seen, 'KEYS', keys)
  rawset(seen, 'ARGV', arguments)
  return pcall(script)
end

return compile, run
"""


class Lua:
    """One interpreter. Each text is compiled once."""

    def __init__(self) -> None:
        self._lua = lua51.LuaRuntime(encoding=None, register_eval=False, register_builtins=False)
        self._is_table = functools.partial(lambda kind, value: kind(value) == "table", lua51.lua_type)
        self._caller: Caller | None = None
        sandbox = self._lua.eval(b"loadstring")(_SANDBOX.encode(), b"@sandbox")
        self._compile, self._run = sandbox(self._call)
        self._compiled: dict[str, Any] = {}

    def run(self, text: str, keys: Sequence[bytes], arguments: Sequence[bytes], caller: Caller) -> Reply:
        """Run a script whose commands go to `caller`.

        Raises:
            Refused: the script failed. Its writes before the error remain.
        """
        script = self._compiled.get(text) or self._new(text)
        self._caller = caller
        try:
            outcome = self._run(script, self._lua.table_from(keys), self._lua.table_from(arguments))
        finally:
            self._caller = None
        done, answer = outcome[:2] if isinstance(outcome, tuple) else (outcome, None)
        if done:
            return self._to_reply(answer)
        if self._is_table(answer):
            raise Refused(_text(answer[b"err"]))
        message = _text(answer)
        # An error of redis.call has a code; an error of Lua itself gets one.
        raise Refused(message if message.partition(" ")[0].isupper() else f"ERR {message}")

    def _new(self, text: str) -> Any:
        compiled = self._compile(text.encode())
        script, problem = compiled if isinstance(compiled, tuple) else (compiled, None)
        if script is None:
            raise Refused(f"ERR Error compiling script (new function): {_text(problem)}")
        self._compiled[text] = script
        return script

    def _call(self, *words: Any) -> Any:
        """redis.pcall: returns a table {err = …} for an error that redis.call raises."""
        if self._caller is None:
            raise AssertionError("a script that has ended calls")
        try:
            if not words:
                raise Refused("ERR Please specify at least one argument for this redis.call() call")
            return self._to_lua(self._caller([_word(word) for word in words]))
        except Refused as refused:
            return self._lua.table_from({b"err": str(refused).encode()})

    def _to_lua(self, reply: Reply) -> Any:
        if isinstance(reply, Status):
            return self._lua.table_from({b"ok": bytes(reply)})
        if reply is None:
            return False
        if isinstance(reply, (int, bytes)):
            return reply
        return self._lua.table_from([self._to_lua(value) for value in reply])

    def _to_reply(self, value: Any) -> Reply:
        if value is None or value is False:
            return None
        if isinstance(value, bytes):
            return value
        if isinstance(value, (int, float)):  # True is 1
            return _cut(value)
        if not self._is_table(value):
            return None
        if value[b"err"] is not None:
            raise Refused(_text(value[b"err"]))
        if value[b"ok"] is not None:
            return Status(value[b"ok"])
        entries: list[Reply] = []
        while (entry := value[len(entries) + 1]) is not None:
            entries.append(self._to_reply(entry))
        return entries


def _cut(number: float) -> int:
    """To a 64-bit integer, as C does on the machines that Redis runs on."""
    return int(number) if abs(number) < 2**63 else -(2**63)


def _word(word: Any) -> bytes:
    if isinstance(word, bytes):
        return word
    if isinstance(word, bool) or not isinstance(word, (int, float)):
        raise Refused("ERR Lua redis lib command arguments must be strings or integers")
    return b"%d" % word if isinstance(word, int) and abs(word) < 10**17 else b"%.17g" % word


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


@functools.cache
def interpreter() -> Lua:
    """The interpreter of this process. All worlds share it, so each script is compiled once."""
    return Lua()
