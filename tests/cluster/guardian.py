"""Removes the namespaces of a run as soon as its process has ended, however it ended.

Usage: guardian.py NAMESPACE...

It waits for the end of its standard input. The process of the run holds the other end, which the kernel closes even
when that process is killed.
"""

from __future__ import annotations

import sys

from network import remove_namespace

if __name__ == "__main__":
    sys.stdin.read()
    for name in sys.argv[1:]:
        remove_namespace(name)
