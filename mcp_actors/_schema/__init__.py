"""JSON Schema from type hints, conversion by them, and validation by schemas of others. Nothing here uses Trio."""
