"""Transports that live outside the engine, each in one file, as ``docs/how-to/transports.md`` shows."""
