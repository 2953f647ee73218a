"""The engine for programs that have no event loop."""

__all__: list[str] = []
