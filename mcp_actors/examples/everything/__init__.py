"""A server that uses every feature of the protocol once: to try a client out, and for the conformance suite.

Run it: ``mcp-actors serve mcp_actors.examples.everything`` or ``python -m mcp_actors.examples.everything``.

General layout
==============

``app``        the ``Server`` object, its lifespan, and the picture and sound that the fixtures return
``content``    tools and their kinds of content, logging, progress, errors, raw JSON Schema; echo, add, divide, sleep,
               touch and activity, which a person would try first; resources, prompts and completion
``asking``     tools that ask the client for something: sampling, elicitation, roots; lists that change; tools whose
               calls become tasks

The names that begin with ``test_``, and the texts they answer, are fixed by the official conformance suite.
"""

from __future__ import annotations

from mcp_actors.examples.everything.app import server

# isort: off
# Tools are listed in the order of these imports.
from mcp_actors.examples.everything import content
from mcp_actors.examples.everything import asking
# isort: on

__all__ = ["asking", "content", "friendly", "reading", "server", "tasks"]
