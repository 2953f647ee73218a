"""The measured programs: servers with the same tools, each started with a URL, and clients that call in a loop."""
