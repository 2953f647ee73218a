"""``mcp-actors bench``: a load for a server, and the figures of what it did.

`bench` is the command. It looks at the server (`targets`), makes a `plan` and starts a process with it (`load`), which
drives sessions (`driver`) over a field of lanes (`field`, `streams`, `http`) and counts (`recorder`). `results` keeps
and compares the figures, `report` shows them as text and as a page.
"""
