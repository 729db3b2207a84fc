"""Specs: the grammar, the names, what is built from them, and files that make a model; the errors of each."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan import models, specs
from smoothplan.models import TabularModel
from smoothplan.models.model import declared_values
from smoothplan.specs import Spec, build_backup, build_model, build_planner, load, parse
from smoothplan.theory.backups import HardMax, LogSumExp, OptimalTransport, Tsallis, discrete_cost, line_cost, ring_cost


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("+7", 7),
        (".5", 0.5),
        ("1e5", 100_000.0),
        ("1e400", float("inf")),
        ("true", True),
        ("False", False),
        ("none", None),
        ("[1,2.5]", [1, 2.5]),
        ("[[0,1],[1,0]]", [[0, 1], [1, 0]]),
        ("8x8", "8x8"),
        ("a=b", "a=b"),
        ("", ""),
    ],
)
def test_values(text: str, value: Any) -> None:
    found = parse(f"name:key={text}").options["key"]
    assert found == value
    assert type(found) is type(value)


def test_specs() -> None:
    assert parse("chain") == Spec("chain", (), {})
    assert parse("a:1,[2,3],c=[4,5],d=6") == Spec("a", (1, [2, 3]), {"c": [4, 5], "d": 6})
    lake = ("FrozenLake-v1", {"map_name": "8x8", "is_slippery": False})
    for prefix in ("", "gym:"):
        assert specs.parse_environment(f"{prefix}FrozenLake-v1,map_name=8x8,is_slippery=false") == lake


# Names


def test_names_and_options_are_those_of_the_classes() -> None:
    """None is forgotten."""
    planners = {thing for thing in vars(sp).values() if hasattr(thing, "start")}
    assert set(specs.PLANNERS.values()) == planners
    others = {"discretise", "finite_horizon", "from_gymnax", "reproduce", "state_of"}
    makers = {name for name in models.__all__ if inspect.isfunction(getattr(models, name))} - others
    assert {maker.__name__ for maker in specs.MODELS.values()} == makers
    assert specs.MODELS["river-swim"] is models.river_swim
    assert specs.MODELS["gym"] is models.from_gymnasium
    assert specs.options_of("planner", sp.DebiasedCruiser) == {"epsilon": inspect.Parameter.empty, "delta": 0.1}


def test_documentation_is_read_from_docstrings() -> None:
    text, arguments = specs.documented(sp.act)
    assert text.startswith("Plays episodes of a Gymnasium environment")
    assert "Args" not in text
    assert arguments["max_steps"].startswith("of an episode")
    assert arguments["calls"].startswith("simulator calls of a decision")  # "as for `Agent`"
    assert arguments["reward_range"] == specs.documented(models.from_gymnasium)[1]["reward_range"]


# Building


@pytest.mark.parametrize("name", specs.MODELS)
def test_every_model_builds_with_its_defaults(name: str) -> None:
    model = build_model({"gym": "gym:FrozenLake-v1"}.get(name, name))
    assert model.actions >= 2
    assert 0.0 <= model.discount < 1.0
    assert model.initial_state is not None


def test_planners_for_the_maximum_need_no_backup() -> None:
    for name in ("mdp-gape:epsilon=0.1", "uct"):
        assert build_planner(name, None).backup == HardMax()
    assert build_planner("ot-gape:epsilon=0.1", None, 2).backup == build_backup(specs.DEFAULT_BACKUP, 2)
    assert build_planner("ot-gape:0.1", LogSumExp(1.0)) == sp.OTGapE(LogSumExp(1.0), 0.1)


def test_options_are_passed_on() -> None:
    model = build_model("garnet:states=1e1,actions=3,branching=2,discount=0.5,seed=7,reward_kind=bernoulli")
    same = models.garnet(states=10, actions=3, branching=2, discount=0.5, seed=7, reward_kind="bernoulli")
    assert isinstance(model, TabularModel)
    assert (model.states, model.actions, model.discount, model.reward_kind) == (10, 3, 0.5, "bernoulli")
    np.testing.assert_array_equal(model.probabilities, same.probabilities)
    assert repr(build_model("two_room:3")) == repr(build_model("two-room:size=3"))
    lake = build_model("gym:FrozenLake-v1,map_name=8x8,is_slippery=false,discount=0.5,value_range=[0,1]")
    assert isinstance(lake, TabularModel)
    assert (lake.states, lake.discount, lake.max_successors, declared_values(lake)) == (64, 0.5, 1, (0.0, 1.0))
    assert build_backup("hard-max", 2) == HardMax()
    assert build_backup("lse:0.25", 3) == LogSumExp(0.25, 3)
    assert build_backup("tsallis:temperature=0.5", 4) == Tsallis(0.5, 4)
    transport = build_backup("ot:tau=2,lam=0.5,reference=[0.25,0.75]", 2)
    assert isinstance(transport, OptimalTransport)
    assert (transport.tau, transport.lam, transport.temperature) == (2.0, 0.5, 1.0)


def test_costs() -> None:
    named = {"line": line_cost(3), "ring": ring_cost(3), "discrete": discrete_cost(3)}
    for cost, matrix in (named | {"[[0,1,2],[1,0,1],[2,1,0]]": 2 * line_cost(3)}).items():
        backup = build_backup(f"ot:cost={cost}", 3)
        assert isinstance(backup, OptimalTransport)
        np.testing.assert_allclose(backup.cost, matrix, atol=1e-15)


# Errors

ERRORS: list[tuple[Callable[[str], Any], str, str]] = [
    (parse, "", "a spec is name:key=value"),
    (parse, "chain:,", "expected key=value, got ''"),
    (parse, "chain:states=5,slip", "expected key=value, got 'slip'"),
    (parse, "chain:states=5,states=6", "'states' is given twice"),
    (parse, "chain:=5", "'' is not a name of an option"),
    (parse, "chain: states=5", "' states' is not a name of an option"),
    (parse, "ot:cost=[a,b]", "is not a list of numbers"),
    (build_model, "nowhere", "unknown model 'nowhere': choose from gym, "),
    (build_model, "river-swin", "unknown model 'river-swin': did you mean river-swim? choose from"),
    (build_model, "CartPole-v1", "unknown model 'CartPole-v1': did you mean gym:CartPole-v1?"),
    (build_model, "my_file.py:make", "got 'my_file.py:make'; a file is run by --simulator FILE:NAME"),
    (build_model, "chain:length=5", "model chain has no option 'length': choose from states, discount, slip"),
    (build_model, "chain:sates=3", "no option 'sates': did you mean states? choose from states"),
    (build_model, "chain:5,states=6", "states is given twice for model chain"),
    (build_model, "chain:5,0.9,0.1,7", "model chain has 3 options, got 4 values"),
    (build_model, "gym", "model gym needs environment: write gym:environment=..."),
    (build_model, "gym:7", "environment must be an id"),
    (lambda text: build_backup(text, 2), "max", "unknown backup 'max': choose from hard-max, lse, ot, tsallis"),
    (lambda text: build_backup(text, 2), "ot:eta=1", "backup ot has no option 'eta': choose from cost, tau, lam"),
    (lambda text: build_backup(text, 2), "ot:cost=square", "cost must be a matrix or one of line, ring, discrete"),
    (lambda text: build_backup(text, 2), "ot:cost=[[0,1],[1]]", "cost must be an array of numbers"),
    (lambda text: build_backup(text, 3), "ot:cost=[[0,1],[1,0]]", "for the model's 3 actions, got one for 2"),
    (lambda text: build_planner(text, None, 2), "ot-gap", "did you mean ot-gape? choose from"),
    (lambda text: build_planner(text, None, 2), "uct:explorations=2", "did you mean exploration? choose from"),
    (lambda text: build_planner(text, None, 2), "debiased", "needs epsilon: write debiased:epsilon=..."),
    *((specs.parse_environment, text, "an environment is Id-v1") for text in ("", "gym:", "a=8x8", "gym:3", "A,B")),
]


@pytest.mark.parametrize(("make", "text", "complaint"), ERRORS, ids=[f"{text} {said}"[:60] for _, text, said in ERRORS])
def test_an_error_names_the_part_that_is_wrong(make: Callable[[str], Any], text: str, complaint: str) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(complaint)):
        make(text)


# Files of the user


def test_a_file_or_module_makes_a_model(own: str) -> None:
    assert load(f"{own}:make_model,discount=0.3").discount == 0.3
    for text, states in ((f"{own}:Table,states=4", 4), (f"{own}:table", 3), ("my_file:table", 3)):
        model = load(text)
        assert isinstance(model, TabularModel)
        assert model.states == states


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("my_file.py", "--simulator must be my_file.py:make_model or package.module:make_model, got"),
        ("my_file.py:mak_model", "has no 'mak_model': did you mean make_model? choose from np, sp, LOW, make_model"),
        ("my_file.py:make_model,limt=1", "has no option 'limt': did you mean limit? choose from discount, limit"),
        ("my_file.py:make_model,3", "expected key=value, got '3'"),
        ("my_file.py:make_model,discount=none", "raised TypeError: discount must be a number, got None ("),
        ("my_file.py:Table", "my_file.py:Table needs states: write my_file.py:Table,states=..."),
        ("my_file.py:table,states=4", "is no function, and takes no options, got states"),
        ("my_file.py:nothing", "my_file.py:nothing makes no model: model must have"),
        ("my_file.py:number", "my_file.py:number makes no model: model must have actions"),
        ("my_file.py:wrong", "my_file.py:wrong raised ZeroDivisionError: division by zero ("),
        ("my_file.py:wrong", "my_file.py, line 26)"),
        ("gone.py:make", "gone.py raised FileNotFoundError: "),
        ("gone.module:make", "raised ModuleNotFoundError: No module named 'gone'"),
    ],
)
def test_a_file_that_makes_no_model(own: str, text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        load(text)


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("1 +", "raised SyntaxError: invalid syntax (broken.py, line 1) ("),
        ("import nowhere_at_all", "raised ModuleNotFoundError: No module named 'nowhere_at_all' ("),
        ("\nraise SystemExit(3)", "raised SystemExit: 3 ("),
        ("\nraise SystemExit(3)", "broken.py, line 2)"),
    ],
)
def test_a_file_that_does_not_run(own: str, code: str, complaint: str) -> None:
    Path("broken.py").write_text(code)
    with pytest.raises(ValueError, match=re.escape(complaint)):
        load("broken.py:make_model")
