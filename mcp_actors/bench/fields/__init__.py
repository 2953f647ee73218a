"""Connections of the load process to a server: raw bytes where it can, a transport's own client elsewhere."""
