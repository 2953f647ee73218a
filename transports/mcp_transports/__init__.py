"""The bindings: each carries frames over one medium and is found by its URL scheme (see `mcp_actors.abc.discovery`).

They use only public names of `mcp_actors`, as a third party's binding does, and import only what their own medium
needs.
"""
