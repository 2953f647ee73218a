"""``python -m benchmarks``: see ``benchmarks/suite/README.md``."""

from __future__ import annotations

import importlib
import sys


def main(arguments: list[str]) -> int:
    try:
        # Loaded here: what it needs may not be there.
        command = importlib.import_module("benchmarks.suite.command")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("benchmarks"):
            raise
        print(
            f"python -m benchmarks needs {error.name}: pip install -e '.[benchmarks]'",
            file=sys.stderr,
        )
        return 2
    code: int = command.main(arguments)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
