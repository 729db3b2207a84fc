"""Specs: the grammar, its errors, and what is built from them."""

import inspect
import re
from typing import Any

import numpy as np
import pytest

from smoothplan import models, specs
from smoothplan.backups import HardMax, LogSumExp, OptimalTransport, Tsallis, discrete_cost, line_cost, ring_cost
from smoothplan.models import TabularModel
from smoothplan.models.base import declared_values
from smoothplan.specs import BACKUPS, MODELS, Spec, build_backup, build_model, parse


def _only_value(text: str) -> Any:
    return parse(f"name:key={text}").options["key"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("+7", 7),
        (".5", 0.5),
        ("1e5", 100_000.0),
        ("1e-3", 0.001),
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
    found = _only_value(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("chain", Spec("chain", (), {})),
        ("two-room:size=3", Spec("two-room", (), {"size": 3})),
        ("gym:Taxi-v4,discount=0.9", Spec("gym", ("Taxi-v4",), {"discount": 0.9})),
        ("lse:0.5", Spec("lse", (0.5,), {})),
        ("a:1,[2,3],c=[4,5],d=6", Spec("a", (1, [2, 3]), {"c": [4, 5], "d": 6})),
    ],
)
def test_specs(text: str, spec: Spec) -> None:
    assert parse(text) == spec


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "a spec is name:key=value"),
        ("a b", "a spec is name:key=value"),
        ("chain:,", "expected key=value, got ''"),
        ("chain:states=5,slip", "expected key=value, got 'slip'"),
        ("chain:states=5,states=6", "states is given twice"),
        ("chain:=5", "'' is not a name of an option"),
        ("chain: states=5", "' states' is not a name of an option"),
        ("ot:cost=[[0,1],[1,0]", "is not a list of numbers"),
        ("ot:cost=[a,b]", "is not a list of numbers"),
    ],
)
def test_errors_of_the_grammar(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)):
        parse(text)


REQUIRED = {"gym": "gym:FrozenLake-v1"}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_builds_with_its_defaults(name: str) -> None:
    model = build_model(REQUIRED.get(name, name))
    assert model.actions >= 2
    assert 0.0 <= model.discount < 1.0
    assert model.initial_state is not None


@pytest.mark.parametrize("name", BACKUPS)
@pytest.mark.parametrize("actions", [1, 2, 5])
def test_every_backup_builds_with_its_defaults(name: str, actions: int) -> None:
    backup = build_backup(name, actions)
    policy = backup.policy(np.arange(actions))
    assert policy.shape == (actions,)
    assert policy.argmax() == actions - 1


def test_every_model_of_the_zoo_can_be_named() -> None:
    others = {"check_model", "reproduce", "state_of"}  # functions that make no model
    factories = {name for name in models.__all__ if inspect.isfunction(getattr(models, name))} - others
    assert {factory.__name__ for factory in MODELS.values()} == factories


def test_a_model_honours_its_options() -> None:
    model = build_model("garnet:states=1e1,actions=3,branching=2,discount=0.5,seed=7,reward_kind=bernoulli")
    same = models.garnet(states=10, actions=3, branching=2, discount=0.5, seed=7, reward_kind="bernoulli")
    assert isinstance(model, TabularModel)
    assert (model.states, model.actions, model.discount, model.reward_kind) == (10, 3, 0.5, "bernoulli")
    for name in ("probabilities", "successors", "rewards"):
        np.testing.assert_array_equal(getattr(model, name), getattr(same, name))
    assert repr(build_model("two_room:3")) == repr(build_model("two-room:size=3"))


@pytest.mark.parametrize(
    ("text", "states", "discount"),
    [
        ("gym:FrozenLake-v1,map_name=8x8,is_slippery=false,discount=0.5", 64, 0.5),
        ("gym:environment=Taxi-v4", 500, 0.99),
    ],
)
def test_gymnasium_gets_its_options(text: str, states: int, discount: float) -> None:
    model = build_model(text)
    assert isinstance(model, TabularModel)
    assert (model.states, model.discount) == (states, discount)
    if "is_slippery=false" in text:
        assert model.max_successors == 1


def test_a_value_range_is_a_list() -> None:
    model = build_model("gym:FrozenLake-v1,value_range=[0,1]")
    assert declared_values(model) == (0.0, 1.0)
    with pytest.raises(ValueError, match=re.escape("value_range must overlap [0, 100], the values that reward_range=")):
        build_model("gym:FrozenLake-v1,value_range=[-2,-1]")


def test_backups_honour_their_options() -> None:
    assert build_backup("hard-max", 2) == HardMax()
    assert build_backup("lse:temperature=0.25", 3) == LogSumExp(0.25, 3)
    assert build_backup("lse:2", 3) == LogSumExp(2, 3)
    assert build_backup("tsallis:temperature=0.5", 4) == Tsallis(0.5, 4)
    backup = build_backup("ot:tau=2,lam=0.5,reference=[0.25,0.75],cost=zero", 2)
    assert isinstance(backup, OptimalTransport)
    assert (backup.tau, backup.lam, backup.temperature) == (2.0, 0.5, 1.0)
    np.testing.assert_array_equal(backup.reference_at(), [0.25, 0.75])


def test_costs() -> None:
    named = {"line": line_cost(3), "ring": ring_cost(3), "discrete": discrete_cost(3), "zero": np.zeros((3, 3))}
    for cost, matrix in (named | {"[[0,1,2],[1,0,1],[2,1,0]]": 2 * line_cost(3)}).items():
        backup = build_backup(f"ot:cost={cost}", 3)
        assert isinstance(backup, OptimalTransport)
        np.testing.assert_allclose(backup.cost, matrix, atol=1e-15)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nowhere", "unknown model 'nowhere': choose from garnet, chain, two-room"),
        ("chain:length=5", "model chain has no option 'length': choose from states, discount, slip"),
        ("gym", "missing a required argument: 'environment'"),
        ("chain:states=five", "states must be a whole number, got 'five'"),
        (
            "garnet:reward_kind=gaussian",
            "reward_kind must be one of deterministic, bernoulli, transition, bounded, got",
        ),
        ("frozen-lake:slippery=2", "slippery must be true or false, got 2"),
        ("gym:7", "environment must be an id"),
    ],
)
def test_wrong_models(text: str, complaint: str) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(complaint)):
        build_model(text)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("max", "unknown backup 'max': choose from hard-max, lse, ot, tsallis"),
        ("ot:eta=1", "backup ot has no option 'eta': choose from tau, lam, cost, reference"),
        ("lse:temperature=0", "temperature must be greater than 0, got 0"),
        ("ot:cost=square", "cost must be a matrix or one of line, ring, discrete, zero, got 'square'"),
        ("ot:cost=[[0,1],[1]]", "cost must be an array of numbers"),
        ("ot:cost=[[0,1,1],[1,0,1],[1,1,0]]", "cost must be a matrix for the model's 2 actions, got one for 3"),
    ],
)
def test_wrong_backups(text: str, complaint: str) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(complaint)):
        build_backup(text, 2)


# Environments


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("FrozenLake-v1", ("FrozenLake-v1", {})),
        ("gym:FrozenLake-v1", ("FrozenLake-v1", {})),
        ("FrozenLake-v1,map_name=8x8,is_slippery=false", ("FrozenLake-v1", {"map_name": "8x8", "is_slippery": False})),
    ],
)
def test_an_environment_is_an_id_and_options(text: str, found: Any) -> None:
    assert specs.parse_environment(text) == found
    assert specs.is_environment(f"gym:{text.removeprefix('gym:')}")
    assert not specs.is_environment("chain:states=5")


@pytest.mark.parametrize("text", ["", "gym:", "map_name=8x8", "gym:3", "A-v1,B-v1"])
def test_what_is_no_environment_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="an environment is Id-v1,key=value"):
        specs.parse_environment(text)
