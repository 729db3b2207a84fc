"""Rules on the sources: imports go downwards, simulators are called through one door, no machine's own paths."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

import pytest

import smoothplan

PACKAGE = "smoothplan"
SOURCE = Path(smoothplan.__file__).parent
TESTS = Path(__file__).parent

ROOT = ""
"""The public namespace, smoothplan/__init__.py. It gathers everything, so only the command line may import it."""

LAYERS: tuple[tuple[str, ...], ...] = (
    ("arguments",),
    ("streams", "brake"),
    ("transport",),
    ("backups",),
    ("models",),
    ("exact",),
    ("curvature",),
    ("confidence",),
    ("schedules",),
    ("engines",),
    ("search",),
    ("references",),
    ("running",),
    ("forecast",),
    ("recursion",),
    ("plan",),
    ("planners",),
    ("defaults",),
    ("acting", "unregularised"),
    ("specs",),
    (ROOT,),
    ("cli",),
)
"""From bottom to top. Modules side by side do not import each other."""

INSIDE: dict[str, tuple[tuple[str, ...], ...]] = {
    "models": (("calls",), ("base",), ("tabular", "vector"), ("jit",), ("zoo", "acrobot"), ("gymnasium",)),
}
"""The order inside a package, where there is one: every module of it is listed. Elsewhere they import freely."""

LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def _sources() -> dict[str, str]:
    """The package: path from its top to text."""
    return {path.relative_to(SOURCE).as_posix(): path.read_text("utf-8") for path in sorted(SOURCE.rglob("*.py"))}


def _module(path: str) -> str:
    """The dotted name inside the package: "models" for models/__init__.py, "" for the package's own."""
    parts = PurePosixPath(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def _imports(path: str, source: str, known: frozenset[str]) -> Iterator[tuple[int, str]]:
    """The lines and the modules of this package that a file imports, wherever the statement stands."""
    here = _module(path).split(".")
    package = here if path.endswith("__init__.py") else here[:-1]
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    top, _, rest = alias.name.partition(".")
                    if top == PACKAGE:
                        yield node.lineno, rest
            case ast.ImportFrom(module=origin, names=names, level=level):
                if level:
                    base = _join(*package[: len(package) - level + 1], origin or "")
                elif origin is not None and origin.split(".")[0] == PACKAGE:
                    base = origin.partition(".")[2]
                else:
                    continue
                for alias in names:
                    member = _join(base, alias.name)
                    yield node.lineno, member if member in known else base


def _inner_level(module: str) -> int | None:
    """Where a module stands inside its package; the package itself is on top. None where there is no order."""
    package, _, rest = module.partition(".")
    if package not in INSIDE:
        return None
    levels = {name: level for level, names in enumerate(INSIDE[package]) for name in names}
    return levels[rest.split(".")[0]] if rest else len(levels)


def _homeless(module: str) -> bool:
    package, _, rest = module.partition(".")
    listed = {name for names in INSIDE.get(package, ()) for name in names}
    return package not in LEVEL or bool(rest and listed and rest.split(".")[0] not in listed)


def _downwards(importer: str, imported: str) -> bool:
    above, below = importer.partition(".")[0], imported.partition(".")[0]
    if above != below:
        return LEVEL[above] > LEVEL[below]
    upper, lower = _inner_level(importer), _inner_level(imported)
    return upper is None or lower is None or upper > lower


def wrong_imports(sources: Mapping[str, str]) -> list[str]:
    """What is wrong with the imports of a package: file, line and both modules of each."""
    listed = {_join(package, name) for package, levels in INSIDE.items() for names in levels for name in names}
    known = frozenset({_module(path) for path in sources} | set(LEVEL) | listed)
    wrong = [f"{path}: module {_module(path)} is in no layer" for path in sources if _homeless(_module(path))]
    for path, source in sources.items():
        importer = _module(path)
        if importer == ROOT or _homeless(importer):
            continue
        for line, imported in _imports(path, source, known):
            if _homeless(imported):
                wrong.append(f"{path}:{line}: {importer} imports {imported}, which is in no layer")
            elif not _downwards(importer, imported):
                wrong.append(f"{path}:{line}: {importer} imports {imported or PACKAGE}, which is not below it")
    return wrong


def direct_simulator_calls(sources: Mapping[str, str]) -> list[str]:
    """Where a module above the models calls a simulator past `Oracle`, which counts and checks the calls."""
    wrong = []
    for path, source in sources.items():
        if LEVEL.get(_module(path).partition(".")[0], len(LEVEL)) <= LEVEL["models"] or _module(path) == ROOT:
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


# Put together from parts, so that this file does not contain what it forbids.
MACHINE_FOLDERS = ("home", "root", "work", "Users", "workspace")
MACHINE_PATH = re.compile(r"(?<![\w.~/-])(?:[A-Z]:[\\/]+Users\b|/(?:" + "|".join(MACHINE_FOLDERS) + r")/)")
INDEX_ADDRESS = re.compile(r"https?:" + r"//\S*/simple\b")


def machine_traces(sources: Mapping[str, str]) -> list[str]:
    """Absolute paths of a machine and addresses of package indices."""
    return [
        f"{path}:{number}: {found.group()}"
        for path, text in sources.items()
        for number, line in enumerate(text.splitlines(), start=1)
        for pattern in (MACHINE_PATH, INDEX_ADDRESS)
        if (found := pattern.search(line))
    ]


def test_imports_go_downwards() -> None:
    assert not wrong_imports(_sources())


def test_simulators_are_called_through_the_oracle() -> None:
    assert not direct_simulator_calls(_sources())


def test_no_file_names_a_machine_or_an_index() -> None:
    files = [path for top in (SOURCE, TESTS) for path in sorted(top.rglob("*")) if path.is_file()]
    texts = {str(p): p.read_text("utf-8", errors="replace") for p in files if "__pycache__" not in p.parts}
    assert str(Path(__file__)) in texts
    assert not machine_traces(texts)


def test_the_whole_package_is_read() -> None:
    """An empty or moved package would pass every rule."""
    assert {"__init__.py", "cli.py", "models/__init__.py", "models/base.py"} <= set(_sources())
    known = frozenset(LEVEL)
    assert {target for _, target in _imports("cli.py", _sources()["cli.py"], known)} >= {ROOT, "specs", "exact"}


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("arguments.py", "import smoothplan.exact", "arguments.py:1: arguments imports exact"),
        ("backups.py", "\nfrom smoothplan.models import Oracle", "backups.py:2: backups imports models"),
        ("backups.py", "from smoothplan import arguments, exact", "backups imports exact"),
        ("backups.py", "from .engines import run", "backups imports engines"),
        ("exact.py", "def solve():\n    from smoothplan import plan", "exact.py:2: exact imports plan"),
        ("plan.py", "if TYPE_CHECKING:\n    import smoothplan.planners.gape", "plan.py:2: plan imports planners.gape"),
        ("planners/gape.py", "from smoothplan import plan, cli", "planners.gape imports cli"),
        ("planners/gape.py", "from .. import specs", "planners.gape imports specs"),
        ("planners/gape.py", "import smoothplan as sp", "planners.gape imports smoothplan"),
        ("planners/gape.py", "from smoothplan import HardMax", "planners.gape imports smoothplan"),
        ("models/base.py", "from smoothplan.models import zoo", "models.base imports models.zoo"),
        ("models/base.py", "from . import Oracle", "models.base imports models,"),
        ("models/base.py", "from .jit import JitModel", "models.base imports models.jit"),
        ("models/tabular.py", "from smoothplan.models.vector import Step", "models.tabular imports models.vector"),
        ("models/extra.py", "", "models/extra.py: module models.extra is in no layer"),
        ("helpers.py", "", "helpers.py: module helpers is in no layer"),
        ("cli.py", "import smoothplan.helpers", "cli.py:1: cli imports helpers, which is in no layer"),
    ],
)
def test_a_wrong_import_is_found(path: str, source: str, complaint: str) -> None:
    (found,) = wrong_imports({path: source})
    assert complaint in found


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("__init__.py", "from smoothplan import cli"),
        ("cli.py", "import smoothplan\nfrom smoothplan import exact, specs"),
        ("models/__init__.py", "from .zoo import chain\nfrom smoothplan.models.base import Oracle"),
        ("models/zoo.py", "from smoothplan.models import base, jit"),
        ("models/gymnasium.py", "import gymnasium\nfrom plan import nothing_of_ours"),
        ("planners/gape.py", "from smoothplan.planners import reference\nfrom .baselines import UCT"),
        ("planners/__init__.py", "from . import gape"),
    ],
)
def test_a_right_import_is_left_alone(path: str, source: str) -> None:
    assert not wrong_imports({path: source})


@pytest.mark.parametrize(
    "source",
    [
        "model.step(states, actions, rng)",
        "def run(oracle):\n    return oracle.model.step(*batch)",
        "from smoothplan.models.base import Oracle, checked_step",
        "from smoothplan.models import base\nbase.checked_step(model, states, actions, rng)",
    ],
)
def test_a_direct_simulator_call_is_found(source: str) -> None:
    for path in ("engines/batched.py", "plan.py", "exact.py"):
        (found,) = direct_simulator_calls({path: source})
        assert found.startswith(path)
    assert not direct_simulator_calls({"models/base.py": source})


def test_other_steps_are_left_alone() -> None:
    assert not direct_simulator_calls({"plan.py": "oracle.sample(states, actions)\nstep(1)\nsize = level.step"})


@pytest.mark.parametrize("folder", MACHINE_FOLDERS)
def test_a_path_of_a_machine_is_found(folder: str) -> None:
    assert machine_traces({"a.py": f'\nopen("/{folder}/me/data")'}) == [f"a.py:2: /{folder}/"]
    assert not machine_traces({"a.py": f"https://example.org/{folder}/page and ../{folder}/data"})


@pytest.mark.parametrize("address", ["https:" + "//example.org/pypi/simple", "http:" + "//127.0.0.1:80/simple/numpy"])
def test_the_address_of_an_index_is_found(address: str) -> None:
    assert machine_traces({"a.txt": f"--index {address}"})
    assert not machine_traces({"a.txt": "https://example.org/simpler"})
