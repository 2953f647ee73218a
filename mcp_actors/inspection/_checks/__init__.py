"""The checks of the rules, by what they look at; `mcp_actors.inspection.rules` is the table."""
