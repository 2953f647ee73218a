"""Bridges between the engine, which runs on Trio in a thread of its own, and programs that run on something else.

A process has one `EngineThread`, whatever uses it: asyncio loops, plain threads, ASGI servers. A bridge belongs to one
loop or thread of the program. It takes calls to the engine and gives results back, and lets the engine call functions
of the program where they belong. Programs use `mcp_actors.asyncio` and `mcp_actors.sync`, which are built on this; it
is public for bindings.
"""
