"""``mcp-actors install`` and ``mcp-actors uninstall``: a server in the configuration of another program's client.

`clients` is the table of the clients that are known: where each has its file, in which form, and what an entry looks
like. `command` and `uninstall` are the two commands, and `change` is what both do: read, show, ask, write. They use
`config_text` (JSON, with or without comments -> places in the text), `config_edit` (an entry put in or taken out, and
every other character left alone), `config_file` (reading and replacing a file), `history` (the copies, and what was
changed), `entry` (the words with which a client starts the server), `trial` (whether it starts with them), and
`shown` (a change as lines for a person).
"""
