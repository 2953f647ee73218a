"""One server behind a gateway: its settings, its actor, its connections, and how it is."""
