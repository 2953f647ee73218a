"""Looks into a wheel: the packages, typed, and nothing else that would be installed."""

from __future__ import annotations

import sys
from pathlib import PurePosixPath
from zipfile import ZipFile

PACKAGES = {"mcp_actors", "mcp_transports", "pytest_mcp_actors"}


def complaints(names: list[str]) -> list[str]:
    tops = {PurePosixPath(name).parts[0] for name in names}
    found = [f"unexpected: {top}" for top in sorted(tops - PACKAGES) if not top.endswith(".dist-info")]
    found += [
        f"missing: {each}/{file}"
        for each in sorted(PACKAGES)
        for file in ("__init__.py", "py.typed")
        if f"{each}/{file}" not in names
    ]
    found += [
        f"does not belong: {name}"
        for name in names
        if "__pycache__" in name or name.endswith((".pyc", ".orig"))
    ]
    # The pages that `mcp-actors docs` finds.
    found += [
        f"missing: mcp_actors/docs/{kind}"
        for kind in ("start", "how-to", "reference", "why", "project")
        if not any(name.startswith(f"mcp_actors/docs/{kind}/") for name in names)
    ]
    if "mcp_actors/docs/index.md" not in names:
        found.append("missing: mcp_actors/docs/index.md")
    if not any(name.endswith("LICENSE") for name in names):
        found.append("missing: LICENSE")
    return found


def main(wheel: str) -> int:
    names = ZipFile(wheel).namelist()
    found = complaints(names)
    print("\n".join(found) or f"{len(names)} files, as they should be")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
