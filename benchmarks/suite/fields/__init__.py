"""How the load process speaks to a server: raw bytes where it knows the wire, a transport's own client elsewhere."""
