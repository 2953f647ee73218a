"""Real servers to run as they are and to copy from: ``sqlite``, ``filesystem``, ``git``, ``everything``.

``issuer`` is an authorization server to try logins with.
"""
