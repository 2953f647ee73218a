"""Tasks: calls of tools that outlive their caller (MCP 2025-11-25, Tasks; SEP-2663)."""

from __future__ import annotations

from mcp_actors.tasks.extension import TASKS, Tasks

__all__ = ["TASKS", "Tasks"]
