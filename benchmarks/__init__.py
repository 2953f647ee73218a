"""Measurements of mcp-actors; see ``python -m benchmarks --help``."""
