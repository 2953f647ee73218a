"""The engine for programs that run on asyncio, notebooks included."""

__all__: list[str] = []
