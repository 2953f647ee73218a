"""``mcp-actors bench``: `command` (the options), `target` (the server, before the load), `running` (the process of the
load, seen from here), `worker` (the same process, from inside), `live` (the display while it runs), `thresholds`,
`text` (the table for people), `page` (for browsers), `comparing` (two files).
"""
