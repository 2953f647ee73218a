"""The suite: every scenario on every transport for every peer, in rounds; see ``python -m benchmarks list``."""
