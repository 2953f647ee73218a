"""The HTTP side of the measurements: raw clients of our own, each in a process beside the server's."""
