"""The bindings: each carries frames over one medium and is found by its URL scheme (see `mcp_actors.discovery`).

They use public names of `mcp_actors` only, as a stranger's binding does, and import nothing that their own medium
does not need.
"""
