"""An authorization server to try logins with, for this machine only: it asks for no password::

    python -m mcp_actors.examples.issuer
    python -m mcp_actors.examples.issuer --user ann=mcp:read,mcp:write --client machine=mcp:write

`issuer` has its decisions, `clients` and `tokens` what it knows and issues, within the bounds of `bounded`. `http_face`
serves it with `pages` for persons, and ``__main__`` is the command line. It needs the extra ``auth``.
"""
