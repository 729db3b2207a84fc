"""Rules on the sources: imports go downwards between the rooms of docs/architecture.md, never in a circle; simulators
are called through the oracle, no file names a machine. The map is checked too: rooms, arrows and every name in it."""

import ast
import graphlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest

import smoothplan

PACKAGE = "smoothplan"
SOURCE = Path(smoothplan.__file__).parent
TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"
MAP = (DOCS / "architecture.md").read_text("utf-8")


class Room(NamedTuple):
    """A row of the table of rooms in docs/architecture.md, the only list of them."""

    name: str
    contents: set[str]  # modules and packages; "__init__" is the public namespace
    imports: set[str]  # names of the rooms below that it imports from


ROOMS = [  # from top to bottom
    Room(name, set(re.findall(r"\w+", contents)), set(re.findall(r"\w+", imports)))
    for name, contents, imports in re.findall(r"^\| (\w+) \| (`[^|]+`) \|[^|]*\| ([\w, –]+) \|$", MAP, re.MULTILINE)
]
FLOOR = {content: number for number, room in enumerate(ROOMS) for content in room.contents}  # of modules and packages
FAMILIES = {"recursive", "bounds", "chains"}  # side by side: they do not import each other
DOOR = ("base.records", "report")  # the one import that leads upwards: records ask for their report when they are shown


def _module(path: str) -> str:
    """The name of a module below smoothplan: "theory.exact", "models" for its __init__, "__init__" for the top."""
    parts = PurePosixPath(path).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


def _sources() -> dict[str, str]:
    """The package: path from its top to text."""
    return {path.relative_to(SOURCE).as_posix(): path.read_text("utf-8") for path in sorted(SOURCE.rglob("*.py"))}


MODULES = frozenset(map(_module, _sources()))


def _named(name: str) -> str:
    """The module that an imported name belongs to: the longest beginning of the name that is a module."""
    parts = name.split(".")
    beginnings = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((start for start in beginnings if start in MODULES - {"__init__"}), "__init__")


def _imports(sources: Mapping[str, str]) -> Iterator[tuple[str, int, str, str]]:
    """Imports of this package, also under TYPE_CHECKING and inside functions: path, line, importer and imported.

    Modules have their names below smoothplan; "__init__" is the public namespace.
    """
    for path, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            origin = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            assert getattr(node, "level", 0) == 0, f"{path}:{node.lineno}: a relative import"
            for alias in node.names:
                top, _, rest = f"{origin}{alias.name}".partition(".")
                if top == PACKAGE and _module(path) != _named(rest):
                    yield path, node.lineno, _module(path), _named(rest)


def _top(module: str) -> str:
    """The module or package directly below smoothplan that a module belongs to."""
    return module.partition(".")[0]


def wrong_imports(sources: Mapping[str, str]) -> list[str]:
    """Files in no room, imports of a room above or of another family, and uses of the public namespace from below."""
    wrong = [f"{path} is in no room" for path in sources if _top(_module(path)) not in FLOOR]
    for path, line, importer, imported in _imports(sources):
        above, below = _top(importer), _top(imported)
        if above not in FLOOR or above in (below, "__init__") or (importer, imported) == DOOR:
            continue
        public = imported == "__init__" and FLOOR[above] != FLOOR["__init__"]
        if public or FLOOR[above] > FLOOR[below] or {above, below} <= FAMILIES:
            wrong.append(f"{path}:{line} imports {imported if imported != '__init__' else PACKAGE}")
    return wrong


def circle(sources: Mapping[str, str]) -> list[str]:
    """Modules that import each other in a circle; none if there is no such circle. The door does not count."""
    below: dict[str, set[str]] = {}
    for _, _, importer, imported in _imports(sources):
        if importer != "__init__" and imported != "__init__" and (importer, imported) != DOOR:
            below.setdefault(importer, set()).add(imported)
    try:
        graphlib.TopologicalSorter(below).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def rooms_imported(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """The other rooms that each room imports from."""
    found: dict[str, set[str]] = {room.name: set() for room in ROOMS}
    for _, _, importer, imported in _imports(sources):
        above, below = FLOOR.get(_top(importer)), FLOOR[_top(imported)]
        if above is not None and above != below and (importer, imported) != DOOR:
            found[ROOMS[above].name].add(ROOMS[below].name)
    return found


def reduced(relation: Mapping[str, Iterable[str]]) -> set[tuple[str, str]]:
    """The arrows of an acyclic relation that no path of other arrows implies: its transitive reduction."""

    def reached(start: str) -> set[str]:
        return {end for step in relation[start] for end in {step, *reached(step)}}

    arrows = {(above, below) for above, lower in relation.items() for below in lower}
    return {(a, b) for a, b in arrows if not any(b in reached(other) for other in relation[a] if other != b)}


def direct_simulator_calls(sources: Mapping[str, str]) -> list[str]:
    """Where a module above the models calls a simulator directly, not through `Oracle`, which counts and checks."""
    wrong = []
    for path, source in sources.items():
        if FLOOR.get(_top(_module(path)), 0) >= FLOOR["models"]:
            continue
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.Call(func=ast.Attribute(attr="step")):
                    wrong.append(f"{path}:{node.lineno}: calls step")
                case ast.Attribute(attr="checked_step"):
                    wrong.append(f"{path}:{node.lineno}: uses checked_step")
                case ast.ImportFrom(names=names) if any(alias.name == "checked_step" for alias in names):
                    wrong.append(f"{path}:{node.lineno}: imports checked_step")
    return wrong


MACHINE_FOLDERS = ("home", "root", "work", "Users", "workspace")
# Assembled from parts, so that this file does not contain what it forbids: paths of a machine, addresses of an index.
MACHINE = re.compile(
    rf"(?<![\w.~/-])(?:[A-Z]:[\\/]+Users\b|/(?:{'|'.join(MACHINE_FOLDERS)})/)|https?:" + r"//\S*/simple\b"
)


def machine_traces(sources: Mapping[str, str]) -> list[str]:
    return [f"{path}: {found.group()}" for path, text in sources.items() if (found := MACHINE.search(text))]


def missing_names(names: Iterable[str]) -> list[str]:
    """Those of `package.module:Class.method` and `package.module.Class` that do not exist."""
    missing = []
    for name in names:
        try:
            pkgutil.resolve_name(name.removesuffix(":"))
        except (AttributeError, ImportError):
            missing.append(name)
    return missing


# The sources


@pytest.mark.parametrize("rule", [wrong_imports, circle, direct_simulator_calls])
def test_the_sources_keep_to_the_rules(rule: Callable[[Mapping[str, str]], list[str]]) -> None:
    wrong = rule(_sources())
    assert not wrong, "\n".join(wrong)


def test_no_file_names_a_machine_or_an_index() -> None:
    files = [path for top in (SOURCE, TESTS) for path in sorted(top.rglob("*")) if path.is_file()]
    texts = {str(p): p.read_text("utf-8", errors="replace") for p in files if "__pycache__" not in p.parts}
    assert str(Path(__file__)) in texts
    assert not machine_traces(texts)


# The map


def test_the_map_has_twelve_rooms_and_every_module_is_in_one() -> None:
    """An empty package or an unreadable table would pass every rule."""
    assert len(ROOMS) == 12
    assert sum(len(room.contents) for room in ROOMS) == len(FLOOR)
    assert {_top(_module(path)) for path in _sources()} == set(FLOOR)


def test_the_map_names_the_rooms_that_each_room_imports_from() -> None:
    real = rooms_imported(_sources())
    assert {room.name: room.imports for room in ROOMS} == real, "the last column of docs/architecture.md is wrong"


def test_the_picture_has_the_arrows_of_the_map() -> None:
    """An arrow for every import between rooms that no chain of other arrows implies, and no other arrow."""
    picture = (DOCS / "images" / "rooms.svg").read_text("utf-8")
    drawn = re.findall(r'data-from="(\w+)" data-to="(\w+)"', picture)
    assert len(set(drawn)) == len(drawn)
    assert set(drawn) == reduced({room.name: room.imports for room in ROOMS}), "run: python docs/images/make.py"
    assert re.findall(r'data-room="(\w+)"', picture) == [room.name for room in ROOMS]


def test_every_name_of_the_map_exists() -> None:
    names = set(re.findall(r"`(smoothplan\.[\w.]+)`", MAP))
    assert len(names) > 30
    missing = missing_names(sorted(names))
    assert not missing, "\n".join(missing)


# Negative controls


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("base/arguments.py", "import smoothplan.theory.exact", ":1 imports theory.exact"),
        ("theory/exact.py", "def solve():\n    from smoothplan.run.plan import x", ":2 imports run.plan"),
        ("bounds/gape.py", "from smoothplan.chains.grid import x", ":1 imports chains.grid"),
        ("run/plan.py", "import smoothplan as sp", ":1 imports smoothplan"),
        ("run/plan.py", "if TYPE_CHECKING:\n    from smoothplan import report", ":2 imports report"),
        ("helpers.py", "", " is in no room"),
        ("__init__.py", "from smoothplan import cli", None),
        ("specs.py", "import smoothplan", None),
        ("cli.py", "import smoothplan\nfrom smoothplan import specs", None),
        ("models/__init__.py", "from smoothplan.models.model import Oracle", None),
        ("decide/decide.py", "from smoothplan.chains.grid import x\nfrom smoothplan.bounds import gape", None),
        ("base/records.py", "def shown():\n    from smoothplan import report", None),
    ],
)
def test_wrong_imports_are_found_and_right_ones_allowed(path: str, source: str, complaint: str | None) -> None:
    assert wrong_imports({path: source}) == ([] if complaint is None else [path + complaint])


def test_a_circle_is_found() -> None:
    one = {"run/plan.py": "from smoothplan.run import workers"}
    two = {"run/workers.py": "if TYPE_CHECKING:\n    from smoothplan.run.plan import plan"}
    assert not circle(one)
    assert not circle(two)
    assert set(circle(one | two)) == {"run.plan", "run.workers"}


def test_a_direct_simulator_call_is_found() -> None:
    for source in (
        "oracle.model.step(*batch)",
        "from smoothplan.models.model import checked_step",
        "x.checked_step(y)",
    ):
        (found,) = direct_simulator_calls({"theory/exact.py": source})
        assert found.startswith("theory/exact.py")
        assert not direct_simulator_calls({"models/model.py": source})
    assert not direct_simulator_calls({"run/plan.py": "oracle.sample(states, actions)\nstep(1)\nsize = level.step"})


def test_traces_of_a_machine_are_found() -> None:
    for folder in MACHINE_FOLDERS:
        assert machine_traces({"a.py": f'\nopen("/{folder}/me/data")'}) == [f"a.py: /{folder}/"]
        assert not machine_traces({"a.py": f"https://example.org/{folder}/page and ../{folder}/data"})
    assert machine_traces({"a.txt": "--index http:" + "//127.0.0.1:80/simple/numpy"})
    assert not machine_traces({"a.txt": "https://example.org/simpler"})
