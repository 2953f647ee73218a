"""A server that uses every feature of the protocol once: to try a client out, and for the conformance suite.

Run it: ``mcp-actors serve mcp_actors.examples.everything`` or ``python -m mcp_actors.examples.everything``.

General layout
==============

``house``      the ``Server`` object, its lifespan, and the picture and sound that the fixtures return
``friendly``   tools that a person would call: echo, add, divide, sleep, touch, activity
``content``    tools and their kinds of content, logging, progress, errors, raw JSON Schema
``asking``     tools that ask the client for something: sampling, elicitation, roots; and lists that change
``reading``    resources, prompts and completion
``tasks``      tools whose calls become tasks

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
