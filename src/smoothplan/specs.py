"""Specs: how a command line names models, backups and planners, `name:key=value,...`. Parsed, never evaluated.

>>> parse("gym:FrozenLake-v1,map_name=8x8,discount=0.9")
Spec(name='gym', positional=('FrozenLake-v1',), options={'map_name': '8x8', 'discount': 0.9})
"""

import difflib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from smoothplan import arguments, models
from smoothplan.backups import (
    Backup,
    HardMax,
    LogSumExp,
    OptimalTransport,
    Tsallis,
    discrete_cost,
    line_cost,
    ring_cost,
)
from smoothplan.models import GenerativeModel
from smoothplan.planners import (
    UCT,
    DebiasedCruiser,
    MDPGapE,
    OTGapCruiser,
    OTGapE,
    RandomizedMultilevel,
    ReferenceCruiser,
    SecondOrderSmoothCruiser,
    SmoothCruiser,
    SparseSampling,
)
from smoothplan.running.run import Planner

Factory = Callable[..., Any]

MODELS: dict[str, Factory] = {
    factory.__name__.replace("_", "-"): factory
    for factory in (
        models.garnet,
        models.chain,
        models.two_room,
        models.river_swim,
        models.sailing,
        models.frozen_lake,
        models.inventory,
        models.sysadmin,
        models.cart_pole,
        models.mountain_car,
    )
} | {"gym": models.from_gymnasium}


TEMPERATURE = 1.0
"""Of every smooth backup whose spec does not say it; for ot it is η = tau·lam."""


def _hard_max(actions: int) -> HardMax:
    """The ordinary maximum over actions."""
    return HardMax()


def _log_sum_exp(actions: int, temperature: float = TEMPERATURE) -> LogSumExp:
    """The entropy-regularised backup of SmoothCruiser."""
    return LogSumExp(temperature, actions)


def _tsallis(actions: int, temperature: float = TEMPERATURE) -> Tsallis:
    """The backup of sparsemax, whose policies leave bad actions out."""
    return Tsallis(temperature, actions)


def _optimal_transport(
    actions: int, tau: float = 1.0, lam: float = TEMPERATURE, cost: Any = "discrete", reference: Any = None
) -> OptimalTransport:
    """The optimal-transport backup; cost is line, ring, discrete, zero or a matrix [[0,1],[1,0]]."""
    costs: dict[str, Callable[[int], Any]] = {
        "line": line_cost,
        "ring": ring_cost,
        "discrete": discrete_cost,
        "zero": lambda actions: np.zeros((actions, actions)),
    }
    most = 5_000  # a matrix of 5,000² entries takes 200 MB
    if isinstance(cost, str):
        if cost not in costs:
            raise ValueError(f"cost must be a matrix or one of {', '.join(costs)}, got {cost!r}")
        if actions > most:
            raise ValueError(f"cost {cost} is for at most {most:,} actions, got a model with {actions:,}")
        cost = costs[cost](actions)
    backup = OptimalTransport(cost=cost, tau=tau, lam=lam, reference=reference)
    if backup.actions != actions:
        raise ValueError(f"cost must be a matrix for the model's {actions} actions, got one for {backup.actions}")
    return backup


BACKUPS: dict[str, Factory] = {
    "hard-max": _hard_max,
    "lse": _log_sum_exp,
    "ot": _optimal_transport,
    "tsallis": _tsallis,
}
"""Factories of backups: functions of the number of actions and the options in a spec."""

PLANNERS: dict[str, Factory] = {
    "sparse-sampling": SparseSampling,
    "smooth-cruiser": SmoothCruiser,
    "second-order": SecondOrderSmoothCruiser,
    "debiased": DebiasedCruiser,
    "ot-gape": OTGapE,
    "mdp-gape": MDPGapE,
    "ot-gap-cruiser": OTGapCruiser,
    "reference-cruiser": ReferenceCruiser,
    "randomized-multilevel": RandomizedMultilevel,
    "uct": UCT,
}
"""Factories of planners: functions of the backup and the options in a spec."""

DEFAULT_BACKUP, DEFAULT_PLANNER = f"lse:temperature={TEMPERATURE:g}", "debiased:epsilon=0.1"
"""The defaults for a short horizon; `defaults` chooses for a long one. Planners for the maximum need no backup."""

SUPPLIED = {"model": (), "backup": ("actions",), "planner": ("backup", "key", "reference")}
"""Arguments that do not come from the spec."""


@dataclass(frozen=True)
class Spec:
    """A parsed spec."""

    name: str
    positional: tuple[Any, ...]
    options: dict[str, Any]


def parse(text: str) -> Spec:
    """Parses `name`, `name:key=value,...` or `name:value,key=value,...`.

    A value is a number, true, false, none, a bracketed list of numbers, or a plain word.
    """
    name, _, rest = text.partition(":")
    if not re.fullmatch(r"[A-Za-z][\w-]*", name):
        raise ValueError(f"a spec is name:key=value,..., got {_brief(text)}{_meant(text)}")
    return Spec(name, *parse_options(rest, text))


def parse_options(rest: str, text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The values and options in `value,key=value,...`, a part of a text that errors name."""
    positional: list[Any] = []
    options: dict[str, Any] = {}
    for piece in _split(rest) if rest else []:
        key, equals, value = piece.partition("=")
        if not equals:
            if options or not piece:
                raise ValueError(f"expected key=value, got {_brief(piece)} in {_brief(text)}")
            positional.append(_value(piece))
        elif not re.fullmatch(r"[A-Za-z_]\w*", key):
            raise ValueError(f"{_brief(key)} is not a name of an option, in {_brief(text)}")
        elif key in options:
            raise ValueError(f"{_brief(key)[1:-1]} is given twice in {_brief(text)}")
        else:
            options[key] = _value(value)
    return tuple(positional), options


def _meant(text: str) -> str:
    """What a text that is no spec may have been meant to be, as the end of a sentence."""
    if re.match(r"[\w/-]+-v\d+(,|$)", text):
        return f": did you mean gym:{text[:200]}?"
    if re.match(r".*\.py(:|$)", text):
        return f": a file of your own is run by --simulator {text[:200]}"
    return ""


def close(name: str, names: Iterable[str]) -> str:
    """A hint at the most similar of some names, if one is similar, as the beginning of a sentence."""
    found = difflib.get_close_matches(name, list(names), n=1, cutoff=0.7)  # at 0.6, eta would be taken for tau
    return f"did you mean {found[0]}? " if found else ""


def _split(text: str) -> list[str]:
    """The pieces of a text between commas outside brackets."""
    pieces, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            pieces.append(text[start:place])
            start = place + 1
    return [*pieces, text[start:]]


def _value(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    if text.startswith("["):
        try:
            return json.loads(text, parse_int=_whole)
        except (ValueError, RecursionError):
            raise ValueError(f"{text[:60]!r} is not a list of numbers like [[0,1],[1,0]]") from None
    if re.fullmatch(r"[+-]?\d{1,18}", text):
        return _whole(text)
    try:
        return float(text)
    except ValueError:
        return text


def _whole(text: str) -> int | float:
    """A whole number; a float if it has more than 18 digits, which no count has."""
    return int(text) if len(text.lstrip("+-")) <= 18 else float(text)


def _brief(text: str) -> str:
    """A text in quotation marks, cut off after 200 characters to keep a message short."""
    return repr(text) if len(text) <= 200 else f"{text[:200]!r}…"


def build_model(text: str) -> GenerativeModel:
    """The model that a spec names."""
    spec = parse(text)
    if spec.name == "gym":
        _check_environment(spec)
    model: GenerativeModel = _call("model", MODELS, spec, spec.positional)
    return model


def is_environment(text: str) -> bool:
    """Whether a spec of a model names a Gymnasium environment."""
    return parse(text).name == "gym"


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


def build_backup(text: str, actions: int) -> Backup:
    """The backup that a spec names, for a model with this number of actions."""
    spec = parse(text)
    backup: Backup = _call("backup", BACKUPS, spec, (arguments.whole("actions", actions), *spec.positional))
    return backup


def build_planner(text: str, backup: Backup | None, actions: int | None = None) -> Planner:
    """The planner that a spec names, for a backup.

    Without one it is the planner's own, which those for the maximum have, or `DEFAULT_BACKUP` for a number of actions.
    """
    spec = parse(text)
    factory = _entry("planner", PLANNERS, spec)
    if backup is None and inspect.signature(factory).parameters["backup"].default is not inspect.Parameter.empty:
        backup = HardMax()
    if backup is None:
        backup = build_backup(DEFAULT_BACKUP, arguments.whole("actions", actions))
    planner: Planner = _call("planner", PLANNERS, spec, (backup, *spec.positional))
    return planner


def _entry(kind: str, registry: Mapping[str, Factory], spec: Spec) -> Factory:
    name = spec.name.replace("_", "-")
    if name not in registry:
        meant = _meant(spec.name) if kind == "model" else ""
        choices = f"choose from {', '.join(registry)}"
        raise ValueError(f"unknown {kind} {_brief(spec.name)}{meant or f': {close(name, registry)}{choices}'}")
    return registry[name]


def _call(kind: str, registry: Mapping[str, Factory], spec: Spec, positional: tuple[Any, ...]) -> Any:
    name, factory = spec.name.replace("_", "-"), _entry(kind, registry, spec)
    signature = inspect.signature(factory)
    open_ended = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    known = options_of(kind, factory)
    unknown = [key for key in spec.options if key not in known and not open_ended]
    if unknown:
        hint = f"{close(unknown[0], known)}choose from {', '.join(known) or 'none'}"
        raise ValueError(f"{kind} {name} has no option {_brief(unknown[0])}: {hint}")
    try:
        signature.bind(*positional, **spec.options)
    except TypeError as error:
        raise ValueError(f"{kind} {name}: {error}") from None
    try:
        return factory(*positional, **spec.options)
    except (ValueError, TypeError) as error:
        if len(str(error)) > 500:  # it repeats a long value of the spec
            error.args = (f"{str(error)[:500]}…",)
        raise


def options_of(kind: str, factory: Factory) -> dict[str, Any]:
    """The options of an entry with their defaults; `inspect.Parameter.empty` for a required one."""
    return {
        name: parameter.default
        for name, parameter in inspect.signature(factory).parameters.items()
        if name not in SUPPLIED[kind] and parameter.kind is not parameter.VAR_KEYWORD
    }
