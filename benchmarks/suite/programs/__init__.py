"""The servers that are measured: each is started with a URL and offers the same tools."""
