from mcp_actors.auth import MemoryTokenStore as FileTokenStore
