"""Specs: text that names a model, backup or planner, `name:key=value,...`, and files that make a model.

Names and options come from the classes and functions themselves. Specs are parsed, never evaluated; only `load` runs
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
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import smoothplan
from smoothplan.base import arguments
from smoothplan.models import GenerativeModel
from smoothplan.models.model import required_model
from smoothplan.run.records import Planner
from smoothplan.theory.backups import Backup

Factory = Callable[..., Any]
T = TypeVar("T")

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
        raise ValueError(f"a spec is name:key=value,..., got {_brief(text)}{_meant(text)}")
    return Spec(name, *_options(rest, text))


def _options(rest: str, text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The values and options in `value,key=value,...`, a part of a text that errors quote."""
    positional: list[Any] = []
    options: dict[str, Any] = {}
    for piece in _split(rest) if rest else []:
        key, equals, content = piece.partition("=")
        if not equals:
            if options or not piece:
                raise ValueError(f"expected key=value, got {_brief(piece)} in {_brief(text)}")
            positional.append(value(piece))
        elif not re.fullmatch(r"[A-Za-z_]\w*", key):
            raise ValueError(f"{_brief(key)} is not a name of an option, in {_brief(text)}")
        elif key in options:
            raise ValueError(f"{_brief(key)[1:-1]} is given twice in {_brief(text)}")
        else:
            options[key] = value(content)
    return tuple(positional), options


def _split(text: str) -> list[str]:
    """The pieces of a text between commas outside brackets."""
    pieces, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            pieces.append(text[start:place])
            start = place + 1
    return [*pieces, text[start:]]


def value(text: str) -> Any:
    """A number, true, false, none, a bracketed list of numbers, or else the text itself.

    >>> value("1e3"), value("[[0,1],[1,0]]"), value("8x8")
    (1000.0, [[0, 1], [1, 0]], '8x8')
    """
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    if text.startswith("["):
        try:
            return json.loads(text, parse_int=_whole)
        except (ValueError, RecursionError):
            raise ValueError(f"{text[:60]!r} is not a list of numbers like [[0,1],[1,0]]") from None
    if re.fullmatch(r"[+-]?\d+", text):
        return _whole(text)
    try:
        return float(text)
    except ValueError:
        return text


def _whole(text: str) -> int | float:
    """A whole number; a float if it has more than 18 digits, too many for any count."""
    return int(text) if len(text.lstrip("+-")) <= 18 else float(text)


def _brief(text: str) -> str:
    """A text in quotation marks, cut off after 200 characters."""
    return repr(text) if len(text) <= 200 else f"{text[:200]!r}…"


def _meant(text: str) -> str:
    """A guess at the meaning of a text that is no spec, as the end of a sentence."""
    if re.match(r"[\w/-]+-v\d+(,|$)", text):
        return f": did you mean gym:{text[:200]}?"
    if re.match(r".*\.py(:|$)", text):
        return f": a file of your own is run by --simulator {text[:200]}"
    return ""


def choices(name: str, names: Iterable[str]) -> str:
    """The names to choose from, the most similar one first if there is one."""
    known = list(names)
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.7)  # at 0.6, eta would be taken for tau
    return "".join(f"did you mean {each}? " for each in found) + f"choose from {', '.join(known) or 'none'}"


# Names and options


def _kebab(name: str) -> str:
    """The name of a class or function in a spec.

    >>> _kebab("HardMax"), _kebab("river_swim"), _kebab("OTGapCruiser")
    ('hard-max', 'river-swim', 'ot-gap-cruiser')
    """
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name).replace("_", "-").lower()


def registry(module: ModuleType, test: Callable[[Any], bool], **short: str) -> dict[str, Factory]:
    """The public things of a module that pass a test, by their names in specs."""
    found = [thing for name, thing in vars(module).items() if not name.startswith("_") and test(thing)]
    return {short.get(thing.__name__) or _kebab(thing.__name__): thing for thing in found}


def _makes_a_model(thing: Any) -> bool:
    if not inspect.isfunction(thing):
        return False
    signature = inspect.signature(thing)
    made = signature.return_annotation
    return isinstance(made, type) and made.__name__.endswith("Model") and "model" not in signature.parameters


def is_backup(thing: Any) -> bool:
    """Whether a thing is the class of a backup: a dataclass, as no protocol or base class is."""
    usable = isinstance(thing, type) and is_dataclass(thing)
    return usable and hasattr(thing, "at_zero_range") and hasattr(thing, "regulariser")


MODELS = registry(smoothplan.models, _makes_a_model, from_gymnasium="gym")
BACKUPS = registry(smoothplan.backups, is_backup, LogSumExp="lse", OptimalTransport="ot")
PLANNERS = registry(
    smoothplan,
    lambda thing: hasattr(thing, "start"),
    SecondOrderSmoothCruiser="second-order",
    DebiasedCruiser="debiased",
    OTGapE="ot-gape",
    MDPGapE="mdp-gape",
)
REGISTRIES = {"model": MODELS, "backup": BACKUPS, "planner": PLANNERS}

DEFAULT_BACKUP, DEFAULT_PLANNER = "lse:temperature=1", "debiased:epsilon=0.1"
"""The defaults for a short horizon. Planners for the maximum need no backup."""


def options_of(kind: str, factory: Factory) -> dict[str, Any]:
    """The options of an entry with their defaults; `inspect.Parameter.empty` for a required one.

    Arguments that every backup requires in Python have defaults here, which give all smooth backups the temperature 1.
    """
    supplied = {"model": (), "backup": ("actions",), "planner": ("backup", "key", "reference")}[kind]
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
            there = getattr(smoothplan, other[1], None) or getattr(smoothplan.models, other[1])
            found[name] = documented(there)[1][name]
    return re.split(r"\n\n(?:\w+:$|>>>)", text, maxsplit=1, flags=re.MULTILINE)[0], found


def entry(kind: str, name: str) -> Factory:
    """The class or function of a name."""
    known, name = REGISTRIES[kind], name.replace("_", "-")
    if name not in known:
        meant = _meant(name) if kind == "model" else ""
        raise ValueError(f"unknown {kind} {_brief(name)}{meant or f': {choices(name, known)}'}")
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
        raise ValueError(f"{what} has no option {_brief(unknown[0])}: {choices(unknown[0], known)}")
    missing = [key for key, default in known.items() if default is inspect.Parameter.empty and key not in given]
    if missing:
        raise ValueError(f"{what} needs {', '.join(missing)}: write {example}{missing[0]}=...")


# Models, backups, planners


def build_model(text: str) -> GenerativeModel:
    """The model that a spec names."""
    spec = parse(text)
    if spec.name == "gym":
        _check_environment(spec)
    model: GenerativeModel = _build("model", spec)
    return model


def build_backup(text: str, actions: int) -> Backup:
    """The backup that a spec names, for a model with this number of actions.

    A word for `cost` names a function of `smoothplan.backups`: `ot:cost=line` uses `line_cost(actions)`.
    """
    actions, spec = arguments.whole("actions", actions), parse(text)
    cost = spec.options.get("cost", "discrete")
    if spec.name == "ot" and isinstance(cost, str):
        functions = {name[:-5]: make for name, make in vars(smoothplan.backups).items() if name.endswith("_cost")}
        known = {name: make for name, make in functions.items() if [*inspect.signature(make).parameters] == ["actions"]}
        if cost not in known:
            raise ValueError(f"cost must be a matrix or one of {', '.join(known)}, got {_brief(cost)}")
        if actions > 5_000:  # a matrix of 5,000² entries takes 200 MB
            raise ValueError(f"cost {cost} is for at most 5,000 actions, got a model with {actions:,}")
        spec.options["cost"] = known[cost](actions)
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
        raise ValueError(f"an environment is Id-v1,key=value,..., got {_brief(text)}")
    _check_environment(spec)
    return spec.positional[0], spec.options


def _check_environment(spec: Spec) -> None:
    """Refuses ids with a prefix `module:`, which Gymnasium would import and thereby run."""
    for name in (*spec.positional, *(spec.options[key] for key in ("environment", "env_id") if key in spec.options)):
        if isinstance(name, str) and not re.fullmatch(r"(?:[\w-]+/)?[\w.-]+", name):
            raise ValueError(
                f"an environment is named by its id, such as CartPole-v1 or namespace/Name-v0, got {_brief(name)}: a "
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
        make = made
        _check(make, options_of("model", make), options, what, f"{what},")
        made = _guarded(lambda: make(**options), what, module)
    elif options:
        raise ValueError(f"{what} is no function, and takes no options, got {', '.join(options)}")
    try:
        return required_model(made)
    except TypeError as error:
        raise ValueError(f"{what} makes no model: {error}") from None


def _module(where: str) -> ModuleType:
    """Runs a file or imports a module. Its folder is searched for other modules, as Python itself does."""
    if not where.endswith(".py"):
        _prepend(Path.cwd())
        return _guarded(lambda: importlib.import_module(where), where, None)
    path = Path(where).resolve()
    _prepend(path.parent)
    # A name of its own: a file called like an installed package must not take its place.
    name = f"simulator_{re.sub(r'[^A-Za-z0-9_]', '_', path.stem)}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module, loader = importlib.util.module_from_spec(spec), spec.loader
    sys.modules[name] = module  # dataclasses and processes of Dask look it up
    _guarded(lambda: loader.exec_module(module), where, module)
    return module


def _prepend(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _guarded(run: Callable[[], T], what: str, module: ModuleType | None) -> T:
    """Runs code of the user; an exception becomes an error of one line, with its place.

    Its prints go to standard error: standard output is for the answer, which may be JSON.
    """
    try:
        with redirect_stdout(sys.stderr):
            return run()
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if module is not None and frame.filename == module.__file__]
        file, line = (own or frames)[-1].filename, (own or frames)[-1].lineno
        if isinstance(error, SyntaxError) and error.filename is not None:
            file, line = error.filename, error.lineno
        raise ValueError(f"{what} raised {type(error).__name__}: {error} ({file}, line {line})") from error
