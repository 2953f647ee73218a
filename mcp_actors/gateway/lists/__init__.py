"""The lists of upstreams: what there is, what it is called, whose it is, and what changes."""
