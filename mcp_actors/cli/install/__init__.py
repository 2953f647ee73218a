"""``mcp-actors install`` and ``mcp-actors uninstall``: a server in the configuration of another program's client.

`install` has the two commands, and `clients` is the table of the clients that are known, with the entries that they
understand. `change` does what both commands do: read, show, ask, write. `config_text` puts an entry into JSON, with or
without comments, and leaves every other character alone; `config_file` reads and replaces a file, and undoes changes.
"""
