"""The programs that are measured: one tool, one file each, so that what differs is the engine alone."""
