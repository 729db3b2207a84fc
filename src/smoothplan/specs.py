"""Specs: text that names a model, backup or planner, `name:key=value,...`, and files that make a model.

Options come from the signatures of the classes and functions. Specs are parsed, never evaluated; only `load` runs
code, from the file that the user names.

>>> parse("gym:FrozenLake-v1,map_name=8x8,discount=0.9")
Spec(name='gym', positional=('FrozenLake-v1',), options={'map_name': '8x8', 'discount': 0.9})
"""

import difflib
import importlib
import importlib.util
import inspect
import json
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import is_dataclass
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from smoothplan import models
from smoothplan.base import arguments
from smoothplan.base.arguments import shown
from smoothplan.bounds.gape import MDPGapE, OTGapE
from smoothplan.bounds.uct import UCT
from smoothplan.chains.cruiser import ReferenceCruiser
from smoothplan.models import GenerativeModel
from smoothplan.models.model import required_model
from smoothplan.recursive.gap_cruiser import OTGapCruiser
from smoothplan.recursive.planners import DebiasedCruiser, SecondOrderSmoothCruiser, SmoothCruiser, SparseSampling
from smoothplan.run.records import Planner
from smoothplan.theory import backups
from smoothplan.theory.backups import Backup

Factory = Callable[..., Any]

# The grammar


class Spec(NamedTuple):
    """A parsed spec."""

    name: str
    positional: tuple[Any, ...]
    options: dict[str, Any]


def parse(text: str) -> Spec:
    """Parses `name`, `name:key=value,...` or `name:value,key=value,...`; `value` says what a value is."""
    name, _, rest = text.partition(":")
    if not re.fullmatch(r"[A-Za-z][\w-]*", name):
        raise ValueError(f"a spec is name:key=value,..., got {shown(text)}; a file is run by --simulator FILE:NAME")
    return Spec(name, *_options(rest, text))


def _options(rest: str, text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The values and options in `value,key=value,...`, a part of a text that errors quote."""
    positional: list[Any] = []
    options: dict[str, Any] = {}
    cuts, depth = [-1], 0
    for place, letter in enumerate(rest):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:  # commas in brackets do not separate
            cuts.append(place)
    for piece in [rest[start + 1 : end] for start, end in pairwise([*cuts, len(rest)])] if rest else []:
        key, equals, content = piece.partition("=")
        if not equals:
            if options or not piece:
                raise ValueError(f"expected key=value, got {shown(piece)} in {shown(text)}")
            positional.append(value(piece))
        elif not re.fullmatch(r"[A-Za-z_]\w*", key):
            raise ValueError(f"{shown(key)} is not a name of an option, in {shown(text)}")
        elif key in options:
            raise ValueError(f"{shown(key)} is given twice in {shown(text)}")
        else:
            options[key] = value(content)
    return tuple(positional), options


def value(text: str) -> Any:
    """A number, true, false, none, a bracketed list of numbers, or else the text itself.

    >>> value("1e3"), value("[[0,1],[1,0]]"), value("8x8")
    (1000.0, [[0, 1], [1, 0]], '8x8')
    """
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]

    def whole(digits: str) -> int | float:  # more than 18 digits are too many for any count
        return int(digits) if len(digits.lstrip("+-")) <= 18 else float(digits)

    if text.startswith("["):
        try:
            return json.loads(text, parse_int=whole)
        except (ValueError, RecursionError):
            raise ValueError(f"{text[:60]!r} is not a list of numbers like [[0,1],[1,0]]") from None
    if re.fullmatch(r"[+-]?\d+", text):
        return whole(text)
    try:
        return float(text)
    except ValueError:
        return text


def choices(name: str, names: Iterable[str]) -> str:
    """The names to choose from, the most similar one first if there is one."""
    known = list(names)
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.7)  # at 0.6, eta would be taken for tau
    return "".join(f"did you mean {each}? " for each in found) + f"choose from {', '.join(known) or 'none'}"


# Names and options


_ZOO = (
    *(models.cart_pole, models.chain, models.frozen_lake, models.garnet, models.inventory, models.mountain_car),
    *(models.river_swim, models.sailing, models.sysadmin, models.two_room),
)
MODELS: dict[str, Factory] = {"gym": models.from_gymnasium}
MODELS |= {make.__name__.replace("_", "-"): make for make in _ZOO}
BACKUPS: dict[str, Factory] = {
    {"LogSumExp": "lse", "OptimalTransport": "ot"}.get(name, re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()): kind
    for name, kind in vars(backups).items()
    if isinstance(kind, type) and is_dataclass(kind) and not name.startswith("_")
}
PLANNERS: dict[str, Factory] = {
    "debiased": DebiasedCruiser,
    "second-order": SecondOrderSmoothCruiser,
    "smooth-cruiser": SmoothCruiser,
    "sparse-sampling": SparseSampling,
    "reference-cruiser": ReferenceCruiser,
    "ot-gape": OTGapE,
    "mdp-gape": MDPGapE,
    "ot-gap-cruiser": OTGapCruiser,
    "uct": UCT,
}
REGISTRIES = {"model": MODELS, "backup": BACKUPS, "planner": PLANNERS}

DEFAULT_BACKUP, DEFAULT_PLANNER = "lse:temperature=1", "debiased:epsilon=0.1"
"""The defaults for a short horizon. Planners for the maximum need no backup."""


def options_of(kind: str, factory: Factory) -> dict[str, Any]:
    """The options of an entry with their defaults; `inspect.Parameter.empty` for a required one.

    Arguments that every backup requires in Python have defaults here, which give all smooth backups the temperature 1.
    """
    supplied = {"model": ("snapshot", "restore"), "backup": ("actions",), "planner": ("backup", "key", "reference")}[
        kind
    ]
    defaults = {"temperature": 1.0, "tau": 1.0, "lam": 1.0, "cost": "discrete"} if kind == "backup" else {}
    return {
        name: defaults.get(name, parameter.default) if parameter.default is parameter.empty else parameter.default
        for name, parameter in inspect.signature(factory).parameters.items()
        if name not in supplied and parameter.kind is not parameter.VAR_KEYWORD
    }


def documented(thing: Factory) -> tuple[str, dict[str, str]]:
    """The text of a docstring up to its sections, and the arguments in the section "Args".

    "as for `name`" is replaced by the text on the argument there.
    """
    text = inspect.getdoc(getattr(thing, "func", thing)) or ""  # of a partial, its function
    section = re.search(r"^Args:\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
    entries = re.findall(r"^    ([\w, *]+): (.*(?:\n     .*)*)", section[1] if section else "", re.MULTILINE)
    found = {name.strip(): " ".join(said.split()) for names, said in entries for name in names.split(",")}
    for name, said in found.items():
        if other := re.fullmatch(r"as for `(\w+)`\.", said):
            there = getattr(sys.modules["smoothplan"], other[1], None) or getattr(models, other[1])
            found[name] = documented(there)[1][name]
    return re.split(r"\n\n(?:\w+:$|>>>)", text, maxsplit=1, flags=re.MULTILINE)[0], found


def entry(kind: str, name: str) -> Factory:
    """The class or function of a name."""
    known, name = REGISTRIES[kind], name.replace("_", "-")
    if name not in known:
        hint = f"did you mean gym:{name}?" if kind == "model" and re.search(r"-v\d+$", name) else choices(name, known)
        raise ValueError(f"unknown {kind} {shown(name)}: {hint}")
    return known[name]


def _build(kind: str, spec: Spec, **supplied: Any) -> Any:
    """Calls the entry that a spec names."""
    name, factory = spec.name, entry(kind, spec.name)
    known = options_of(kind, factory)
    if len(spec.positional) > len(known):
        raise ValueError(f"{kind} {name} has {len(known)} options, got {len(spec.positional)} values")
    given = dict(zip(known, spec.positional, strict=False))
    if twice := given.keys() & spec.options.keys():
        raise ValueError(f"{min(twice)} is given twice for {kind} {name}")
    given |= spec.options
    _check(factory, known, given, f"{kind} {name}", f"{name}:")
    parameters = inspect.signature(factory).parameters
    supplied = {key: thing for key, thing in supplied.items() if key in parameters}
    try:
        return factory(**supplied, **known | given)
    except (ValueError, TypeError) as error:
        error.args = (str(error) if len(str(error)) <= 500 else f"{str(error)[:500]}…",)  # it may quote a long value
        raise


def _check(factory: Factory, known: Mapping[str, Any], given: Mapping[str, Any], what: str, example: str) -> None:
    """Refuses options that a factory does not have, and asks for those that it needs."""
    is_open = any(each.kind is each.VAR_KEYWORD for each in inspect.signature(factory).parameters.values())
    unknown = [key for key in given if key not in known and not is_open]
    if unknown:
        raise ValueError(f"{what} has no option {shown(unknown[0])}: {choices(unknown[0], known)}")
    missing = [key for key, default in known.items() if default is inspect.Parameter.empty and key not in given]
    if missing:
        raise ValueError(f"{what} needs {', '.join(missing)}: write {example}{missing[0]}=...")


# Models, backups, planners


def build_model(text: str) -> GenerativeModel:
    """The model that a spec names."""
    spec = parse(text)
    if spec.name == "gym":
        _refuse_imports(spec)
    model: GenerativeModel = _build("model", spec)
    return model


def build_backup(text: str, actions: int) -> Backup:
    """The backup that a spec names, for a model with this number of actions.

    A word for `cost` names a function of the number of actions: `ot:cost=line` uses `line_cost(actions)`.
    """
    actions, spec = arguments.whole("actions", actions), parse(text)
    costs = {"line": backups.line_cost, "ring": backups.ring_cost, "discrete": backups.discrete_cost}
    cost = spec.options.get("cost", "discrete")
    if spec.name == "ot" and isinstance(cost, str):
        if cost not in costs:
            raise ValueError(f"cost must be a matrix or one of {', '.join(costs)}, got {shown(cost)}")
        if actions > 5_000:  # a matrix of 5,000² entries takes 200 MB
            raise ValueError(f"cost {cost} is for at most 5,000 actions, got a model with {actions:,}")
        spec.options["cost"] = costs[cost](actions)
    backup: Backup = _build("backup", spec, actions=actions)
    if (made := getattr(backup, "actions", None)) not in (None, actions):
        raise ValueError(f"backup {spec.name} must be for the model's {actions} actions, got one for {made}")
    return backup


def build_planner(text: str, backup: Backup | None, actions: int | None = None) -> Planner:
    """The planner that a spec names.

    Without a backup it has its own, if the class has a default, or `DEFAULT_BACKUP` for a number of actions.
    """
    spec = parse(text)
    needed = inspect.signature(entry("planner", spec.name)).parameters["backup"].default is inspect.Parameter.empty
    if backup is None and needed:
        backup = build_backup(DEFAULT_BACKUP, arguments.whole("actions", actions))
    planner: Planner = _build("planner", spec, **{} if backup is None else {"backup": backup})
    return planner


def parse_environment(text: str) -> tuple[str, dict[str, Any]]:
    """The id and the options of a Gymnasium environment, `Id-v1,key=value,...`, with or without `gym:` in front.

    >>> parse_environment("FrozenLake-v1,map_name=8x8")
    ('FrozenLake-v1', {'map_name': '8x8'})
    """
    spec = parse(text if text.startswith("gym:") else f"gym:{text}")
    if len(spec.positional) != 1 or not isinstance(spec.positional[0], str):
        raise ValueError(f"an environment is Id-v1,key=value,..., got {shown(text)}")
    _refuse_imports(spec)
    return spec.positional[0], spec.options


def _refuse_imports(spec: Spec) -> None:
    """Refuses ids with a prefix `module:`, which Gymnasium would import and thereby run."""
    for name in (*spec.positional, *(spec.options[key] for key in ("environment", "env_id") if key in spec.options)):
        if isinstance(name, str) and not re.fullmatch(r"(?:[\w-]+/)?[\w.-]+", name):
            raise ValueError(
                f"an environment is named by its id, such as CartPole-v1 or namespace/Name-v0, got {shown(name)}: a "
                "spec imports no module; import the one that registers it in Python, and use from_gymnasium"
            )


# Files of the user


def load(text: str) -> GenerativeModel:
    """The model that `my_file.py:name` or `package.module:name` makes. This runs the file.

    The name is a model, or a function or class that returns one; `,key=value,...` behind it are keyword arguments.

    Raises:
        ValueError: there is no such file or name, its code fails, or it makes something else; in one line.
    """
    form = re.fullmatch(r"(?P<where>.+?):(?P<name>[A-Za-z_]\w*)(?:,(?P<options>.*))?", text, re.DOTALL)
    if form is None:
        raise ValueError(f"--simulator must be my_file.py:make_model or package.module:make_model, got {text!r}")
    where, name = form["where"], form["name"]
    positional, options = _options(form["options"] or "", text)
    if positional:
        raise ValueError(f"expected key=value, got {str(positional[0])!r} in {text!r}")
    module, what = _module(where), f"{where}:{name}"
    if not hasattr(module, name):
        known = [each for each in vars(module) if not each.startswith("_")]
        raise ValueError(f"{where} has no {name!r}: {choices(name, known)}")
    made = getattr(module, name)
    if callable(made):
        _check(made, options_of("model", made), options, what, f"{what},")
        with _one_line(what, module.__file__):
            made = made(**options)
    elif options:
        raise ValueError(f"{what} is no function, and takes no options, got {', '.join(options)}")
    try:
        return required_model(made, boxes=True)
    except TypeError as error:
        raise ValueError(f"{what} makes no model: {error}") from None


def _module(where: str) -> ModuleType:
    """Runs a file or imports a module. Its folder is searched for other modules, as Python itself does."""
    path = Path(where).resolve() if where.endswith(".py") else None
    folder = str(Path.cwd() if path is None else path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    with _one_line(where, str(path)):
        if path is None:
            return importlib.import_module(where)
        # A name of its own: a file called like an installed package must not take its place.
        name = f"simulator_{re.sub(r'[^A-Za-z0-9_]', '_', path.stem)}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses and Dask look it up there
        spec.loader.exec_module(module)
    return module


@contextmanager
def _one_line(what: str, own: str | None) -> Iterator[None]:
    """Code of the user runs within: an exception becomes an error of one line, with its place in their own file.

    Its prints go to standard error: standard output is for the answer, which may be JSON.
    """
    try:
        with redirect_stdout(sys.stderr):
            yield
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        last = ([frame for frame in frames if frame.filename == own] or frames)[-1]
        file, line = last.filename, last.lineno
        if isinstance(error, SyntaxError) and error.filename is not None:
            file, line = error.filename, error.lineno
        raise ValueError(f"{what} raised {type(error).__name__}: {error} ({file}, line {line})") from error
