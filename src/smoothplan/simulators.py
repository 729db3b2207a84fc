"""Own simulators on the command line: `my_file.py:make_model` runs that file, as `python my_file.py` would.

Specs of models are parsed and never run anything; this is the one option that does.
"""

import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from smoothplan.arguments import shown
from smoothplan.models.base import GenerativeModel, required_model
from smoothplan.specs import close, parse_options

T = TypeVar("T")

FORM = re.compile(r"(?P<where>.+?):(?P<name>[A-Za-z_]\w*)(?:,(?P<options>.*))?", re.DOTALL)


def load(text: str) -> GenerativeModel:
    """The model that `my_file.py:name` or `package.module:name` makes.

    The name is a model, or a function or class that returns one; `,key=value,...` behind it are keyword arguments,
    parsed like those of a spec.

    Raises:
        ValueError: there is no such file or name, its code fails, or it makes something else; in one line.
    """
    form = FORM.fullmatch(text)
    if form is None:
        raise ValueError(f"--simulator must be my_file.py:make_model or package.module:make_model, got {text!r}")
    where, name = form["where"], form["name"]
    positional, options = parse_options(form["options"] or "", text)
    if positional:
        raise ValueError(f"expected key=value, got {str(positional[0])!r} in {text!r}")
    module = _module(where)
    if not hasattr(module, name):
        known = _models_of(module)
        hint = f"{close(name, known)}choose from {', '.join(known)}" if known else "it has no functions and no models"
        raise ValueError(f"{where} has no {name!r}: {hint}")
    thing = getattr(module, name)
    if _is_model(thing) or not callable(thing):
        if options:
            raise ValueError(f"{where}:{name} is no function, and takes no options, got {', '.join(options)}")
        return _required(thing, f"{where}:{name} is")
    _check_options(thing, options, f"{where}:{name}")
    made = _guarded(lambda: thing(**options), f"{where}:{name}", module)
    return _required(made, f"{where}:{name} returned")


def _module(where: str) -> ModuleType:
    """Runs a file, or imports a module; what they import next to them is found, as Python itself finds it."""
    if not (where.endswith(".py") or os.sep in where or "/" in where):
        _prepend(Path.cwd())
        missing = f"--simulator: there is no module {where!r}; a file is named with its .py"
        try:
            found = importlib.util.find_spec(where)
        except (ImportError, ValueError) as error:
            raise ValueError(missing) from error
        if found is None:
            raise ValueError(missing)
        return _guarded(lambda: importlib.import_module(where), where, None)
    path = Path(where)
    if not path.is_file():
        raise ValueError(f"--simulator: there is no file {where!r}")
    _prepend(path.resolve().parent)
    # A name of its own: a file called like an installed package must not take its place.
    name = f"simulator_{re.sub(r'[^A-Za-z0-9_]', '_', path.stem)}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise ValueError(f"--simulator must name a file of Python, *.py, got {where!r}")
    module = importlib.util.module_from_spec(spec)
    loader = spec.loader
    sys.modules[name] = module  # dataclasses and processes of Dask look it up
    _guarded(lambda: loader.exec_module(module), where, module)
    return module


def _prepend(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _guarded(run: Callable[[], T], what: str, module: ModuleType | None) -> T:
    """What code of the user returns; an error of one line, with its place, if it raises one.

    What it prints goes to standard error: standard output is for the answer, which may be JSON.
    """
    try:
        with redirect_stdout(sys.stderr):
            return run()
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if module is not None and frame.filename == module.__file__]
        place = (own or frames)[-1]
        file, line = place.filename, place.lineno
        if isinstance(error, SyntaxError) and error.filename is not None:
            file, line = error.filename, error.lineno
        raise ValueError(f"{what} raised {type(error).__name__}: {error} ({file}, line {line})") from error


def _check_options(thing: Callable[..., Any], options: dict[str, Any], what: str) -> None:
    """Refuses options that a function does not have, and asks for those that it needs."""
    try:
        parameters = inspect.signature(thing).parameters
    except (TypeError, ValueError):  # some functions of extension modules tell nothing
        return
    named = [p for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    known = [parameter.name for parameter in named]
    unknown = [key for key in options if key not in known]
    if unknown and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        hint = f"{close(unknown[0], known)}choose from {', '.join(known) or 'none'}"
        raise ValueError(f"{what} has no option {unknown[0]!r}: {hint}")
    required = [parameter.name for parameter in named if parameter.default is parameter.empty]
    missing = [key for key in required if key not in options]
    if missing:
        raise ValueError(f"{what} needs {', '.join(missing)}: write {what},{missing[0]}=...")


def _required(thing: Any, what: str) -> GenerativeModel:
    if thing is None:
        raise ValueError(f"{what} None, not a model: a function must return one, such as sp.VectorModel(...)")
    try:
        return required_model(thing)
    except TypeError as error:
        raise ValueError(f"{what} {shown(thing)}, not a model: {error}") from None


def _models_of(module: ModuleType) -> list[str]:
    """The names of the functions and classes that a module defines, and of its models."""
    return [
        name
        for name, thing in vars(module).items()
        if not name.startswith("_")
        if _is_model(thing) or (callable(thing) and getattr(thing, "__module__", None) == module.__name__)
    ]


def _is_model(thing: Any) -> bool:
    try:
        return required_model(thing) is thing
    except TypeError:
        return False
