"""Rules for docstrings, names and the sizes of classes; ``test_documentation.py`` applies them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

# -- The complaints of ``test_documentation.py`` that are known, by rule. It may only shrink -------------

KNOWN: dict[str, frozenset[str]] = {
    "references_lead_to_what_exists": frozenset(),
    "public_callables_name_their_errors": frozenset(),
    "sections_are_well_formed": frozenset(),
    "docstrings_are_no_questions": frozenset(),
    "names_are_no_metaphors": frozenset(),
    "class_names_are_used_once": frozenset(),
    "classes_hold_little": frozenset(),
    "comparisons_of_eras": frozenset(),
}


# -- what the rules look at ------------------------------------------------------------------------------

ROOT = Path(__file__).parent.parent
PACKAGES = {"mcp_actors": "mcp_actors", "mcp_transports": "transports/mcp_transports"}
# Beside the packages, where a reference to a missing file may stand.
MORE_TEXT = ("benchmarks", "tests", "README.md", "CHANGELOG.md")
OUTSIDE = ("mcp_actors.cli.bench", "mcp_actors.cli", "mcp_actors.examples")
ATTRIBUTES_OF_A_CLASS = 14
ERA_NAMES = {"legacy", "modern"}
QUESTION_WORDS = {"What", "Who", "Whose", "How", "Which", "Where", "Why"}
# One word for each metaphor, in all of its forms; a name is banned if one of its words is.
METAPHORS = {
    form
    for forms in (
        "reception receptions switchboard switchboards catalogue catalogues seat seats seated hub hubs goodbye",
        "goodbyes talk talks talked talking owe owes owed owing settle settles settled settling door doors",
        "home homes offer offers terms tell tells told hear hears heard homely",
    )
    for form in forms.split()
}
# The contracts of `mcp_actors.abc` that have a verb of these, and so do the classes that implement them.
CONTRACT_VERBS = {"FrameChannel": "settled", "Outlet": "settle"}
# Classes that hold more than the rest, each with its reason.
MANY_ATTRIBUTES: dict[str, str] = {
    "mcp_actors.gateway.lists.UpstreamLists": "what is known of each list, and what was said about it",
    "mcp_actors.shared.redis.link.RedisLink": "one connection: how it is found, what waits on it, and why it was lost",
    "mcp_actors._client.requests.Requests": "all requests pass through it, and what answers and spares them",
    "mcp_actors._actors.link.Link": "every frame passes through it; a second object would be looked up for each",
    "mcp_actors._server.features.Features": "one attribute for each kind of feature, and what is declared of them",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = Function | ast.ClassDef | ast.Module


@dataclass(frozen=True)
class Module:
    name: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def public(self) -> bool:
        return not self.within(*OUTSIDE) and not any(part.startswith("_") for part in self.name.split("."))

    def within(self, *packages: str) -> bool:
        return any(self.name == each or self.name.startswith(each + ".") for each in packages)

    def definitions(self) -> Iterator[tuple[str, Documented, ast.ClassDef | None]]:
        """Everything that may have a docstring: its full name, its node and the class it is directly in."""
        yield self.name, self.tree, None
        stack: list[tuple[str, ast.AST, ast.ClassDef | None]] = [(self.name, self.tree, None)]
        while stack:
            name, parent, owner = stack.pop()
            for node in ast.iter_child_nodes(parent):
                if isinstance(node, Function | ast.ClassDef):
                    yield f"{name}.{node.name}", node, owner
                    inner = node if isinstance(node, ast.ClassDef) else None
                    stack.append((f"{name}.{node.name}", node, inner))
                elif not isinstance(node, ast.expr):
                    stack.append((name, node, owner))

    def classes(self) -> Iterator[tuple[str, ast.ClassDef]]:
        yield from ((name, node) for name, node, _ in self.definitions() if isinstance(node, ast.ClassDef))


@cache
def load_sources(root: Path = ROOT) -> list[Module]:
    modules = []
    for package, folder in PACKAGES.items():
        for path in sorted((root / folder).rglob("*.py")):
            parts = [package, *path.relative_to(root / folder).with_suffix("").parts]
            modules.append(
                Module(".".join(parts[:-1] if parts[-1] == "__init__" else parts), path.read_text())
            )
    return modules


@cache
def load_texts(root: Path = ROOT) -> list[Module]:
    """All text in which a reference may stand, under the names of the files; this file speaks of the rule."""
    places = [root / each for each in (*PACKAGES.values(), *MORE_TEXT)]
    files = [file for each in places for file in ([each] if each.is_file() else sorted(each.rglob("*.*")))]
    return [
        Module(file.relative_to(root).as_posix(), file.read_text())
        for file in files
        if file.suffix in {".py", ".md", ".mjs"}
        and file.stem not in {"documentation_rules", "test_documentation"}
    ]


# -- rules ------------------------------------------------------------------------------------------------------------

# A page of the documentation has one of these names too; it is named with its folder.
DEAD_REFERENCE = re.compile(
    r"\b(protocol|design|redesign|findings|users|measured|(?<!docs/how-to/)authorization)(\.md| §)"
)
SECTION_MARK = re.compile(r"§ ?[\d.]+")
# What a section mark belongs to, if it stands shortly before: a document that a reader can find.
SOURCE = re.compile(r"(RFC \d+|SEP-\d+|JSON-RPC 2\.0|MCP \d{4}-\d\d-\d\d|JSON Schema|20\d\d-\d\d)\D{0,3}$")


def references_lead_to_what_exists(texts: list[Module]) -> list[str]:
    complaints = []
    for text in texts:
        found = [match[0] for match in DEAD_REFERENCE.finditer(text.text)]
        for match in SECTION_MARK.finditer(text.text):
            before = re.sub(
                r"§ ?[\d.]+,? (and )?$", "", text.text[max(0, match.start() - 60) : match.start()]
            )
            if not SOURCE.search(before) and not DEAD_REFERENCE.search(before[-12:] + "§"):
                found.append(match[0])
        if found:
            complaints.append(text.name)
    return complaints


def raised_in(function: Function, returned: dict[str, str]) -> set[str]:
    """The exceptions that this body makes and raises itself; those of inner functions are theirs."""
    found = set()
    stack: list[ast.AST] = list(function.body)
    while stack:
        node = stack.pop()
        if isinstance(node, Function | ast.ClassDef | ast.Lambda):
            continue
        stack.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Raise) and node.exc is not None:
            made = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            name = (
                made.id
                if isinstance(made, ast.Name)
                else made.attr
                if isinstance(made, ast.Attribute)
                else ""
            )
            if isinstance(node.exc, ast.Call):
                name = returned.get(name, name)
            if name[:1].isupper():
                found.add(name)
    return found - {
        "NotImplementedError",
        "StopIteration",
        "StopAsyncIteration",
        "Exception",
        "BaseException",
    }


def results_of(modules: list[Module]) -> dict[str, str]:
    """What functions return, by their names, where the annotation is one class: some make the exception to raise."""
    return {
        node.name: node.returns.id
        for module in modules
        for _, node, _ in module.definitions()
        if isinstance(node, Function) and isinstance(node.returns, ast.Name)
    }


def decorated(function: Function, word: str) -> bool:
    return any(word in ast.unparse(each) for each in function.decorator_list)


def documentation_of(function: Function, owner: ast.ClassDef | None, classes: dict[str, ast.ClassDef]) -> str:
    """The text that a reader has for a callable: its own; a constructor's may stand at the class, and an
    implementation without a docstring has that of the contract."""
    own = ast.get_docstring(function) or ""
    if owner is None:
        return own
    constructs = function.name in {"__init__", "__new__", "__post_init__", "__attrs_post_init__"}
    if constructs or decorated(function, ".validator"):
        return f"{own} {ast.get_docstring(owner) or ''}"
    bases = [each.id if isinstance(each, ast.Name) else getattr(each, "attr", "") for each in owner.bases]
    for name in bases if not own else ():
        base = classes.get(name)
        for node in base.body if base is not None and base is not owner else ():
            if isinstance(node, Function) and node.name == function.name:
                own = own or documentation_of(node, base, classes)
    return own


def is_public(module: Module, name: str) -> bool:
    inner = name.removeprefix(module.name + ".").split(".")
    return module.public and not any(
        part.startswith("_") and not (part.startswith("__") and part.endswith("__")) for part in inner
    )


def public_callables_name_their_errors(modules: list[Module]) -> list[str]:
    returned = results_of(modules)
    classes = {node.name: node for module in modules for _, node in module.classes()}
    complaints = []
    for module in modules:
        methods = {id(node) for _, each in module.classes() for node in each.body}
        for name, node, owner in module.definitions():
            if not isinstance(node, Function) or (owner is None and id(node) in methods):
                continue
            if owner is None and not any(node is each for each in module.tree.body):
                continue  # inside a function: nobody else can call it
            validates = owner is not None and decorated(node, ".validator")
            subject = name.rpartition(".")[0] if validates else name
            if is_public(module, subject):
                said = documentation_of(node, owner, classes)
                complaints += [
                    f"{name} {error}"
                    for error in sorted(raised_in(node, returned))
                    if not re.search(rf"\b{error}\b", said)
                ]
    return complaints


SECTION = re.compile(r"^(Args|Arguments|Parameters|Raises|Returns|Yields):[ \t]*(.*)$", re.MULTILINE)
ENTRY = re.compile(r"^    (\*{0,2}[\w.`]+(?:, \*{0,2}[\w.`]+)*): +\S|^    (\S.*)$")


def sections_of(docstring: str) -> Iterator[tuple[str, list[tuple[str, bool]]]]:
    """``Args`` and ``Raises`` with their entries: the names before the colon, and whether the entry has that form."""
    lines = docstring.splitlines()
    for number, line in enumerate(lines):
        match = SECTION.match(line)
        if match is None or match[1] not in {"Args", "Arguments", "Parameters", "Raises"}:
            continue
        entries = []
        if match[2]:
            entries.append((match[2], False))
        for below in lines[number + 1 :]:
            if below and not below.startswith("    "):
                break
            entry = ENTRY.match(below)
            if entry is not None:
                entries.append((entry[1] or entry[2], entry[1] is not None))
        yield match[1], entries


def parameters_of(node: Documented, classes: dict[str, ast.ClassDef]) -> set[str]:
    if isinstance(node, Function):
        every = node.args
        named = [*every.posonlyargs, *every.args, *every.kwonlyargs, every.vararg, every.kwarg]
        return {each.arg for each in named if each is not None}
    if isinstance(node, ast.Module):
        return set()
    names: set[str] = set()
    for each in node.body:
        if isinstance(each, Function) and each.name in {"__init__", "__new__"}:
            names |= parameters_of(each, classes)
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            names.add(each.target.id.lstrip("_"))
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in classes and classes[base.id] is not node:
            names |= parameters_of(classes[base.id], classes)
    return names


def sections_are_well_formed(modules: list[Module]) -> list[str]:
    classes = {node.name: node for module in modules for _, node in module.classes()}
    complaints = []
    for module in modules:
        for name, node, _ in module.definitions():
            for section, entries in sections_of(ast.get_docstring(node) or ""):
                if section in {"Arguments", "Parameters"}:
                    complaints.append(f"{name} {section}")
                if not entries or not all(formed for _, formed in entries):
                    complaints.append(f"{name} {section}")
                    continue
                said = [each.strip("*` ") for names, _ in entries for each in names.split(",")]
                if section == "Raises":
                    wrong = [each for each in said if not each.rpartition(".")[2][:1].isupper()]
                else:
                    wrong = sorted(set(said) - parameters_of(node, classes))
                complaints += [f"{name} {section} {each}" for each in wrong]
    return complaints


def docstrings_are_no_questions(modules: list[Module]) -> list[str]:
    return [
        name
        for module in modules
        for name, node, _ in module.definitions()
        if re.split(r"\W", ast.get_docstring(node) or "", maxsplit=1)[0] in QUESTION_WORDS
    ]


def words(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def own_attributes(node: ast.ClassDef) -> set[str]:
    """The names assigned to ``self`` in the methods, slots, and the fields that the body annotates."""
    found = set()
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            if "ClassVar" not in ast.unparse(each.annotation):
                found.add(each.target.id)
        elif isinstance(each, ast.Assign):
            slots = any(isinstance(target, ast.Name) and target.id == "__slots__" for target in each.targets)
            if slots and isinstance(each.value, ast.Tuple | ast.List):
                found |= {str(item.value) for item in each.value.elts if isinstance(item, ast.Constant)}
        elif isinstance(each, Function):
            found |= {
                inner.attr
                for inner in ast.walk(each)
                if isinstance(inner, ast.Attribute)
                and isinstance(inner.ctx, ast.Store)
                and isinstance(inner.value, ast.Name)
                and inner.value.id == "self"
            }
    return found - {"__weakref__"}


def members_of(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> set[str]:
    """The public methods and attributes, inherited ones as well: an attribute may implement a property."""
    bases = [each.id if isinstance(each, ast.Name) else getattr(each, "attr", "") for each in node.bases]
    found = own_attributes(node) | {each.name for each in node.body if isinstance(each, Function)}
    found = {name for name in found if not name.startswith("_")}
    for base in bases:
        if base in classes and classes[base] is not node:
            found |= members_of(classes[base], classes)
    return found


def is_a_contract_method(name: str, owner: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> bool:
    """Whether a class implements a contract, by a base or by having all of its members, and this is its verb."""
    return any(
        name == verb
        and contract in classes
        and members_of(classes[contract], classes) <= members_of(owner, classes)
        for contract, verb in CONTRACT_VERBS.items()
    )


def names_are_no_metaphors(modules: list[Module]) -> list[str]:
    classes = {node.name: node for module in modules for _, node in module.classes()}
    complaints: list[str] = []
    for module in modules:
        if module.within(*OUTSIDE):
            continue
        if words(module.name) & METAPHORS:
            complaints.append(module.name)
        for name, node, owner in module.definitions():
            if isinstance(node, ast.Module):
                continue
            contract = owner is not None and is_a_contract_method(node.name, owner, classes)
            if words(node.name) & METAPHORS and not contract:
                complaints.append(name)
            if isinstance(node, ast.ClassDef):
                complaints += [f"{name}.{each}" for each in own_attributes(node) if words(each) & METAPHORS]
    return sorted(set(complaints))


def class_names_are_used_once(modules: list[Module]) -> list[str]:
    found: dict[str, list[str]] = {}
    for module in modules:
        for name, node in module.classes():
            found.setdefault(node.name, []).append(name)
    return sorted(name for name, homes in found.items() if len(homes) > 1)


def is_value(node: ast.ClassDef) -> bool:
    """Whether instances are records that never change, or no instances at all."""
    decorators = [ast.unparse(each) for each in node.decorator_list]
    bases = [ast.unparse(each).rpartition(".")[2].partition("[")[0] for each in node.bases]
    return any("frozen" in each for each in decorators) or bool(
        set(bases) & {"Struct", "TypedDict", "NamedTuple", "Protocol", "Enum", "StrEnum", "IntEnum"}
    )


def classes_hold_little(modules: list[Module]) -> list[str]:
    return sorted(
        name
        for module in modules
        for name, node in module.classes()
        if not is_value(node) and len(own_attributes(node)) > ATTRIBUTES_OF_A_CLASS
        if name not in MANY_ATTRIBUTES
    )


def names_an_era(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value in ERA_NAMES
    return isinstance(node, ast.Tuple | ast.List | ast.Set) and any(map(names_an_era, node.elts))


def comparisons_of_eras(modules: list[Module]) -> list[str]:
    """Each comparison by its module; twice the same name for two of them."""
    complaints = []
    for module in modules:
        if module.within("mcp_actors._eras", *OUTSIDE):
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Compare):
                found = any(map(names_an_era, [node.left, *node.comparators]))
            else:
                found = isinstance(node, ast.MatchValue) and names_an_era(node.value)
            if found:
                complaints.append(module.name)
    return complaints


Rule = Callable[[list[Module]], list[str]]


def checked_by(rule: Rule, root: Path = ROOT) -> list[str]:
    return rule(load_texts(root) if rule is references_lead_to_what_exists else load_sources(root))


def table(root: Path) -> str:
    rows = {
        "comparisons of an era's name outside _eras": comparisons_of_eras,
        "class names used twice": class_names_are_used_once,
        f"classes with more than {ATTRIBUTES_OF_A_CLASS} attributes": classes_hold_little,
        "public callables that raise without saying so": public_callables_name_their_errors,
        "files that refer to a file that is missing": references_lead_to_what_exists,
        "malformed Args and Raises": sections_are_well_formed,
        "docstrings that begin as questions": docstrings_are_no_questions,
        "metaphors as names": names_are_no_metaphors,
    }
    return "\n".join(f"{len(checked_by(rule, root)):5}  {row}" for row, rule in rows.items())
