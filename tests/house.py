"""The house in numbers: what the product is made of, and which room imports which.

``python tests/house.py [CHECKOUT]`` prints the counts of any checkout of this project; ``tests/test_architecture.py``
holds the rules against the same modules. A **room** is a folder or a module directly inside of `mcp_actors`; all
bindings together (`mcp_transports`) are one. ``__init__`` and ``__main__`` of the package are its doors, and no rooms.
An **arrow** leads from a room to one that it imports. A name of a module of ours in a string counts as an import where
`importlib` could load it, because it is one.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

PACKAGES = {
    "mcp_actors": "mcp_actors",
    "mcp_transports": "transports/mcp_transports",
    "pytest_mcp_actors": "transports/pytest_mcp_actors",
}
DOORS = frozenset({"mcp_actors", "mcp_actors.__main__", "pytest_mcp_actors"})
SMALL = 80
"""Lines: a shorter module with one importer beside it is a fragment of that one."""
MOST_ROOMS_OF_A_NAME = 3


@dataclass(frozen=True)
class Module:
    """One file of the product. ``known`` are the names of all modules, among which imports are looked up."""

    name: str
    text: str
    known: frozenset[str] = field(default=frozenset(), repr=False)
    package: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def room(self) -> str:
        """The room that the module is in: the name of a folder or module inside of `mcp_actors`, or a package."""
        package, _, rest = self.name.partition(".")
        return rest.partition(".")[0] if package == "mcp_actors" and rest else self.name.partition(".")[0]

    @property
    def folder(self) -> str:
        return self.name if self.package else self.name.rpartition(".")[0]

    def within(self, *packages: str) -> bool:
        return any(self.name == each or self.name.startswith(each + ".") for each in packages)

    def imports(self) -> Iterator[tuple[str, str | None]]:
        """(module, name taken from it or ``None``), wherever in the file it is imported."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from ((alias.name, None) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                source = self._absolute(node)
                for alias in node.names:
                    whole = f"{source}.{alias.name}"
                    yield (whole, None) if whole in self.known else (source, alias.name)

    def named(self) -> set[str]:
        """The modules of ours that strings name, as `importlib.import_module` takes them; docstrings do not count."""
        prose = docstrings(self.tree)
        strings = {
            node.value
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
        }
        return {each for each in strings if each in self.known and "." in each and each != self.name}

    @cached_property
    def static(self) -> frozenset[str]:
        """The modules of ours that it imports by statements."""
        return frozenset(
            target for target, _ in self.imports() if target in self.known and target != self.name
        )

    @cached_property
    def uses(self) -> frozenset[str]:
        """The modules of ours that it imports, or names in a string."""
        return self.static | self.named()

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        above = parts[: len(parts) - node.level + (1 if self.package else 0)]
        return ".".join([*above, node.module] if node.module else above)


def docstrings(tree: ast.Module) -> set[int]:
    """Ids of the nodes that are docstrings, those below assignments included."""
    return {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in node.body
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    }


def load(root: Path) -> list[Module]:
    """Reads every file of the product below ``root``, a checkout of this project."""
    files: dict[str, Path] = {}
    for package, folder in PACKAGES.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = [package, *path.relative_to(root / folder).with_suffix("").parts]
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    known = frozenset(files)
    return [
        Module(name, path.read_text("utf-8"), known, path.stem == "__init__") for name, path in files.items()
    ]


def arrows(modules: list[Module]) -> set[tuple[str, str]]:
    """Which room imports which, without the doors, and without what only strings name."""
    by_name = {module.name: module for module in modules}
    return {
        (module.room, by_name[target].room)
        for module in modules
        for target in module.static
        if module.name not in DOORS and target not in DOORS and module.room != by_name[target].room
    }


def rooms(modules: list[Module]) -> set[str]:
    return {module.room for module in modules if module.name not in DOORS}


def floors(edges: set[tuple[str, str]], nodes: set[str]) -> dict[str, int]:
    """The floor of each room: one above the highest that it imports. Rooms of a circle have none."""
    below: dict[str, set[str]] = {node: set() for node in nodes}
    for upper, lower in edges:
        below[upper].add(lower)
    placed: dict[str, int] = {}
    while ready := {each for each in below if each not in placed and below[each] <= placed.keys()}:
        placed |= {each: max((placed[lower] + 1 for lower in below[each]), default=0) for each in ready}
    return placed


def circles(graph: Mapping[str, frozenset[str] | set[str]]) -> list[list[str]]:
    """The groups of nodes that reach each other (Tarjan's strongly connected components, without recursion)."""
    found: list[list[str]] = []
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    for start in graph:
        if start in index:
            continue
        index[start] = low[start] = len(index)
        stack.append(start)
        work = [(start, iter(sorted(graph[start])))]
        while work:
            node, targets = work[-1]
            target = next(targets, None)
            if target is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    at = stack.index(node)
                    if len(stack) - at > 1:
                        found.append(sorted(stack[at:]))
                    del stack[at:]
            elif target not in index:
                index[target] = low[target] = len(index)
                stack.append(target)
                work.append((target, iter(sorted(graph.get(target, ())))))
            elif target in stack:
                low[node] = min(low[node], index[target])
    return found


def fragments(modules: list[Module]) -> list[str]:
    """Modules shorter than `SMALL` lines whose one importer is in their own folder."""
    importers: dict[str, list[Module]] = defaultdict(list)
    for module in modules:
        for target in module.uses:
            importers[target].append(module)
    return [
        f"{module.name} ({lines} lines): only {users[0].name} imports it"
        for module in modules
        if not module.package and not module.name.endswith("__main__")
        if (lines := module.text.count("\n")) < SMALL
        if len(users := importers[module.name]) == 1 and users[0].folder == module.folder
    ]


def repeated_names(modules: list[Module]) -> list[str]:
    """File names that stand in more than `MOST_ROOMS_OF_A_NAME` folders."""
    names = Counter(module.name.rpartition(".")[2] for module in modules if not module.package)
    return [
        f"{name}.py stands in {count} folders"
        for name, count in sorted(names.items())
        if count > MOST_ROOMS_OF_A_NAME and name != "__main__"
    ]


def is_protocol(node: ast.ClassDef) -> bool:
    return any("Protocol" in ast.unparse(base).partition("[")[0].split(".") for base in node.bases)


def single_protocols(modules: list[Module]) -> list[str]:
    """Private protocols, and those of private modules, that one class of the product fulfils.

    A class fulfils a protocol if it has all of its methods and properties by name; who calls `...` a method of one name
    may be mistaken, so such protocols are passed over.
    """
    classes = [
        (module.name, node, members(node))
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    ]
    found = []
    for module, node, wanted in classes:
        private = node.name.startswith("_") or any(part.startswith("_") for part in module.split("."))
        # The HTTP server is a package of its own inside of the bindings; nothing of it is public.
        private = private or ".h1" in module
        if not is_protocol(node) or not private or not wanted or wanted == {"__call__"}:
            continue
        fulfilled = [other.name for _, other, has in classes if wanted <= has and not is_protocol(other)]
        if len(set(fulfilled)) == 1:
            found.append(f"{module}.{node.name}: only {fulfilled[0]}")
    return found


def members(node: ast.ClassDef) -> set[str]:
    """The names that a class has: methods, annotated attributes, and what its ``__init__`` sets on ``self``."""
    names: set[str] = set()
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(statement.name)
            if not is_protocol(node):
                names |= {
                    each.attr
                    for each in ast.walk(statement)
                    if isinstance(each, ast.Attribute)
                    and isinstance(each.ctx, ast.Store)
                    and isinstance(each.value, ast.Name)
                    and each.value.id == "self"
                }
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names.add(statement.target.id)
    return names


def counts(root: Path) -> dict[str, object]:
    """The counts of a checkout, by what they count."""
    modules = load(root)
    edges, nodes = arrows(modules), rooms(modules)
    lengths = sorted(module.text.count("\n") for module in modules)
    tests = list((root / "tests").rglob("*.py"))
    placed = floors(edges, nodes)
    return {
        "product files": len(modules),
        "product lines": sum(lengths),
        "median lines of a file": lengths[len(lengths) // 2],
        "largest file": lengths[-1],
        "files under 60 lines": sum(length < 60 for length in lengths),
        "test files": len(tests),
        "test lines": sum(path.read_text("utf-8").count("\n") for path in tests),
        "rooms": len(nodes),
        "arrows": len(edges),
        "floors": len(set(placed.values())),
        "rooms in circles": sorted(nodes - placed.keys()),
        "circles of modules": circles({module.name: module.uses for module in modules}),
        "fragments": fragments(modules),
        "repeated names": repeated_names(modules),
        "private protocols with one implementation": single_protocols(modules),
    }


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent
    for what, count in counts(root).items():
        if isinstance(count, list):
            print(f"{what}: {len(count)}")
            for each in count:
                print(f"    {each if isinstance(each, str) else ' <-> '.join(each)}")
        else:
            print(f"{what}: {count}")


if __name__ == "__main__":
    main()
