"""``mcp-actors rest``: a server as a REST API. `rest` has the command, `application` answers, `document` describes."""
