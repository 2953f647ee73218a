"""Every pair of our own client and server: binding, revision, how the revision was agreed, and feature."""
