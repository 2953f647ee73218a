"""From type hints to JSON Schema, and validation by it. No Trio."""
