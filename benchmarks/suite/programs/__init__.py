"""What is measured: servers, each started with a URL and offering the same tools, and clients in a loop."""
