"""Hostile input: whatever is written in a spec or put into a table, it is refused in one clear line or it works."""

import builtins
import importlib
import os
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import smoothplan as sp
from smoothplan import cli, specs
from smoothplan.base import arguments
from smoothplan.base.streams import stream
from smoothplan.models import zoo
from smoothplan.models.tabular import draw
from smoothplan.theory import curvature, exact

fuzzed = settings(
    derandomize=True,
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture],
)
"""The same examples in every run, whatever the machine is doing."""


def _outcome(build: Callable[[], Any]) -> Any:
    """What is built, or None if it is refused in one line of reasonable length; `ModelError` is a ValueError."""
    try:
        return build()
    except (ValueError, TypeError, ImportError) as error:
        message = str(error)
    assert len(message.splitlines()) == 1, message
    assert len(message) <= 1_000
    return None


# Specs

CODE = [
    "__import__('os').system('touch {canary}')",
    "__import__('os').environ.__setitem__('CANARY', '1')",
    "open('{canary}', 'w')",
    "$(touch {canary})",
    "!!python/object/apply:os.system ['touch {canary}']",
    "cos\nsystem\n(S'touch {canary}'\ntR.",
    "%(name)s%n%s%s%s%s",
    "antigravity:Foo-v0",
    "canary_module:Foo-v0",
]
"""Text that would do something, were it evaluated, formatted, loaded or handed to a shell."""

NASTY = [
    *("", "\0", "\x1b[31m", "\r\n", "\u2028", "\ud800"),
    "x" * 100_000,
    "[" * 100_000,
    "[" * 900 + "]" * 900,
    "," * 100_000,
    "9" * 100_000,
    "[[" + "9" * 4_000 + ",0],[0,0]]",
    "[" + "0," * 40_000 + "0]",
    *("1e400", "nan", "inf", "1e-320", "1e12", "9" * 18, "0x10", "٣", "none", "[]", "[null]", '["a"]', "[NaN]"),
]

KEYS = sorted(
    {
        key
        for kind, registry in (("model", specs.MODELS), ("backup", specs.BACKUPS), ("planner", specs.PLANNERS))
        for factory in registry.values()
        for key in specs.options_of(kind, factory)
    }
    - {"environment"}
    | {"self", "cls", "args", "kwargs", "__class__", "class", "lambda"}
)
NAMES = sorted({*specs.MODELS, *specs.BACKUPS, *specs.PLANNERS})

texts = st.text(max_size=60)
values = st.one_of(st.sampled_from(NASTY), st.sampled_from(CODE), texts, st.floats().map(repr), st.integers().map(str))
hostile_specs = st.one_of(
    texts,
    st.sampled_from(NASTY),
    st.sampled_from(CODE),
    st.builds("{}:{}".format, st.sampled_from(NAMES), values),
    st.builds("{}:{}={}".format, st.sampled_from(NAMES), st.sampled_from(KEYS), values),
    st.builds(
        "{}:{}={},{}={}".format, st.sampled_from(NAMES), st.sampled_from(KEYS), values, st.sampled_from(KEYS), values
    ),
)


@pytest.fixture
def untouched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A folder where code that were executed would leave a file, a variable or a module; nothing may be there after."""
    canary = tmp_path / "canary"
    module = tmp_path / "canary_module.py"
    module.write_text(f"open({str(canary)!r}, 'w').close()\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("CANARY", raising=False)

    def refused(*arguments: Any, **_: Any) -> Any:
        raise AssertionError(f"called with {arguments!r}")

    for place, name in ((builtins, "input"), (os, "system"), (os, "popen")):
        monkeypatch.setattr(place, name, refused)
    yield canary
    assert not canary.exists()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == ["canary_module.py"]
    assert "CANARY" not in os.environ
    assert not {"canary_module", "antigravity"} & set(sys.modules)


def _build_all(text: str) -> None:
    for build in (
        lambda: specs.parse(text),
        lambda: specs.build_model(text),
        lambda: specs.parse_environment(text),
        lambda: specs.build_backup(text, 2),
        lambda: specs.build_planner(text, sp.LogSumExp(0.1)),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # numbers overflow on the way to their refusal
            _outcome(build)


@fuzzed
@given(hostile_specs)
def test_hostile_specs(untouched: Path, text: str) -> None:
    _build_all(text.replace("{canary}", str(untouched)))


@pytest.mark.parametrize("spec", ["{}", "environment={}", "GymV26Environment-v0,env_id={}", "a/{}", "{},discount=0.9"])
@pytest.mark.parametrize("module", ["canary_module", "canary_module:canary_module", ".canary_module", "antigravity"])
def test_a_spec_imports_no_module(untouched: Path, spec: str, module: str) -> None:
    """Gymnasium imports the module of an id such as module:Name-v0."""
    text = spec.format(f"{module}:CartPole-v1")
    with pytest.raises(ValueError, match="a spec imports no module"):
        specs.build_model(f"gym:{text}")
    for environment in (text, f"gym:{text}"):
        with pytest.raises(ValueError, match=r"a spec imports no module|an environment is Id-v1"):
            specs.parse_environment(environment)


def test_the_canary_is_alive(untouched: Path) -> None:
    """What is proved not to happen would be seen."""
    importlib.import_module("canary_module")
    assert untouched.exists()
    untouched.unlink()
    del sys.modules["canary_module"]


@pytest.mark.parametrize(
    "spec",
    [
        "garnet:states=1e300",
        "garnet:states=1e6,actions=1e6",
        "garnet:states=100000,branching=100000",
        "river-swim:states=1e12",
        "two-room:size=1e6",
        "inventory:capacity=316,max_order=316",
        "sysadmin:machines=1e9",
    ],
)
def test_absurd_sizes_are_refused(spec: str) -> None:
    """Before anything of that size is made."""
    with pytest.raises(ValueError, match=r"must be at most [\d,]+, got [\d,]+"):
        specs.build_model(spec)


def test_large_sizes_are_not() -> None:
    with pytest.raises(ValueError, match="is for at most 5,000 actions, got a model with 1,000,000"):
        specs.build_backup("ot:cost=line", 1_000_000)
    assert zoo.garnet(states=200_000, actions=2, branching=4).states == 200_000
    assert zoo.inventory(capacity=100, max_order=5).states == 101
    assert zoo.sysadmin(machines=1_000).actions == 1_001


# The command line

SMALL = "river-swim:discount=0.3"
LIMITS = ("--max-calls=50", "--max-seconds=1", "--progress=none")


def _answered(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """A result; or exit status 2 and the one line on standard error that is returned."""
    try:
        status = cli.main(arguments)
    except SystemExit as end:
        status = int(end.code or 0)
    captured = capsys.readouterr()
    assert status in (0, 2)
    if status == 2:
        assert captured.out == ""
        assert captured.err.startswith("smoothplan")
        assert len(captured.err.splitlines()) == 1
    return captured.err if status == 2 else ""


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("text", [*CODE, *NASTY], ids=lambda text: text[:9])
def test_hostile_command_lines(untouched: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    text = text.replace("{canary}", str(untouched))
    for model in (text, f"gym:{text}", f"gym:X-v0,env_id={text}", f"chain:{text}=5", f"garnet:states={text}"):
        _answered(capsys, "solve", f"--model={model}")
    _answered(capsys, "solve", f"--model={SMALL}", f"--backup={text}")
    _answered(capsys, "solve", f"--model={SMALL}", f"--backup=ot:cost={text}")
    _answered(capsys, "plan", f"--model={SMALL}", f"--planner={text}", *LIMITS)
    _answered(capsys, "plan", f"--model={SMALL}", f"--planner=second-order:epsilon=0.1,variant={text}", *LIMITS)
    _answered(capsys, "plan", f"--model={SMALL}", "--planner=second-order:epsilon=0.5", f"--state={text}", *LIMITS)
    _answered(capsys, "act", f"--env={text}")


FINEST = r"epsilon must be at least \S+, 1e-12 of the largest possible value, .*, got"
COLDEST = r"temperature must be 0, .*, or from 1e-12, 1e-12 of the largest reward, to 1e\+30, got"
LONG = "--model=river-swim:discount=0.999"
SIZE = r"reward_range must lead to values whose size is 0 or from 1e-30 to 1e\+30, got"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("planner", "options", "complaint"),
    [
        ("second-order:epsilon=1e-320", "", f"{FINEST} 9.99989e-321"),
        ("sparse-sampling:epsilon=1e-30", "--backup=hard-max", f"{FINEST} 1e-30"),
        ("reference-cruiser:epsilon=1e-320", "", f"{FINEST} 9.99989e-321"),
        ("sparse-sampling:epsilon=1e-11", "--backup=hard-max", r"epsilon must be greater than 1.\d+e-09, the least .*"),
        ("second-order:epsilon=1e308", "", r"epsilon must be below 1e\+30, got 1e\+308"),
        ("second-order:epsilon=0.1", "--backup=lse:temperature=1e-320", f"{COLDEST} 9.99989e-321"),
        ("second-order:epsilon=0.1", "--backup=lse:temperature=1e100", rf"{SIZE} .*ture of 1e\+100 it is .*e\+99"),
        ("ot-gap-cruiser:epsilon=0.1,delta=1e-101", "", "delta must be at least 1e-100, got 1e-101"),
        ("reference-cruiser:epsilon=0.1,error_range=1e308", "", r"error_range must be below 1e\+30, got 1e\+308"),
        ("reference-cruiser:epsilon=0.1,horizon=1e9", "", "horizon must be at most 100,000,000, got 1000000000.0"),
        ("reference-cruiser:epsilon=0.1,pairs=1e300", "", r"pairs must be at most 1,000,000, got 1e\+300"),
        ("ot-gape:epsilon=0.1,horizon=1e9", "", "horizon must be at most 100,000, got 1000000000.0"),
        ("ot-gape:epsilon=0.1,successors=1e10", "", "successors must be at most 1,000,000,000, got 10000000000.0"),
        ("second-order:epsilon=0.1", "--model=inventory:price=1e300", rf"{SIZE} \(-2.5, 1e\+301\): .*"),
        ("reference-cruiser:epsilon=0.1", "--model=inventory:price=1e300", rf"{SIZE} \(-2.5, 1e\+301\): .*"),
        ("second-order:epsilon=0.1", "--model=river-swim:discount=0.99999999999999", f"{FINEST} 0.1"),
        ("second-order:epsilon=0.1", f"{LONG}9999", "discount must be smaller .*, got 0.9999999: .*"),
        ("ot-gap-cruiser:epsilon=1", f"{LONG}9999", "discount must be smaller .*, got 0.9999999: .*"),
        ("reference-cruiser:epsilon=0.1", f"{LONG}9999", "discount .*: .* more than 100,000,000 steps"),
        ("second-order:epsilon=0.1,variant=paper", LONG, "discount must .*, got 0.999: .*"),
    ],
)
def test_absurd_numbers(capsys: pytest.CaptureFixture[str], planner: str, options: str, complaint: str) -> None:
    given = [f"--model={SMALL}", f"--planner={planner}", *options.split()]
    message = _answered(capsys, "plan", *given, *LIMITS)
    assert re.fullmatch(f"smoothplan: error: {complaint}\n", message), message
    if planner.startswith(("second-order", "sparse-sampling")):
        assert _answered(capsys, "forecast", *given) == message


@pytest.mark.full
@pytest.mark.parametrize("backup", [sp.LogSumExp(1.0), sp.LogSumExp(2e-12)])
def test_numbers_at_the_limits_are_fine(backup: sp.LogSumExp) -> None:
    """A forecast, or a run under a limit on calls, with numbers that are just within the limits."""
    model = specs.build_model("river-swim:discount=0.2")
    finest = 1e-12 * max(curvature.value_interval(model, backup))
    for planner in (sp.SparseSampling, sp.SmoothCruiser):
        least = finest if backup.temperature == 1.0 else 1e-8
        forecast = sp.forecast(planner(backup, epsilon=least, delta=1e-100), model)
        assert forecast.calls > 10**11
        assert forecast.exponent > 1.0  # from 2ε to ε: there is no schedule for ε/2
    for search in (sp.OTGapE(backup, 1e-300, 1e-100), sp.OTGapE(backup, 0.1, horizon=1_000, successors=100)):
        assert sp.plan(search, model, max_calls=50).calls <= 50
    cruiser = sp.ReferenceCruiser(backup, epsilon=finest, delta=1e-100, error_range=9e29)
    assert np.isfinite(sp.plan(cruiser, model, max_calls=500).interval).all()


# Arguments


@pytest.mark.parametrize("value", [10**400, -(10**400), 10**5000, 1e400, float("nan")], ids=range(5))
def test_a_number_that_no_float_can_hold(value: Any) -> None:
    with pytest.raises(ValueError, match=r"x must be finite, got .+"):
        arguments.number("x", value)
    with pytest.raises(ValueError, match="x must be at most 5, got a number of 16,610 bits"):
        arguments.whole("x", 10**5000, most=5)


@pytest.mark.parametrize(
    "values",
    ["1", b"1", ["1"], [1.0, "2"], None, [None], [1.0, None], [10**400], [1j], [[1.0], [1.0, 2.0]], {}, ["x"] * 999],
)
def test_what_is_no_array_of_numbers(values: Any) -> None:
    with pytest.raises(TypeError, match=r"x must be an array of numbers, got .{1,201}$"):
        arguments.numbers("x", values)


# Tables

numbers: st.SearchStrategy[Any] = st.sampled_from(
    [0.0, 0.5, 1.0, 5e-324, True, 1.0 + 1e-8, -5e-324, -1.0, 2.0, np.nan, np.inf, -1e308, 10**400, None, "1", 1j, [1.0]]
)
targets: st.SearchStrategy[Any] = st.sampled_from(
    [0, 0, 0, 1, 1, 2, 3, -1, -(2**63), 2**63 - 1, 2**63, 2**64 - 1, 10**30, 0.0, 1.5, np.nan, "0", None, True]
)


LAYOUTS: list[Callable[[Any], Any]] = [
    np.ascontiguousarray,
    np.asfortranarray,
    lambda values: np.repeat(values, 2, axis=0)[::2],  # strided
    lambda values: values.astype(values.dtype.newbyteorder()),
    lambda values: values.astype(object) if values.dtype.kind == "f" else values.astype(np.uint64),
    lambda values: values.tolist(),
]
"""Ways to hold the same numbers."""


@st.composite
def proper(draw: Any) -> dict[str, Any]:
    """A table that is right, perhaps by a hair, in some layout and of some dtype."""
    states, actions, width = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 20))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    weights = rng.random((states, actions, width)) * (rng.random((states, actions, width)) < 0.6)
    weights = weights ** draw(st.sampled_from([1, 1, 30, 400]))  # subnormal numbers among them
    weights[..., draw(st.integers(0, width - 1))] += 1e-3
    probabilities = weights / weights.sum(axis=-1, keepdims=True)
    probabilities *= 1.0 + draw(st.sampled_from([0.0, 0.0, 9e-10, -9e-10]))
    probabilities[probabilities == 0.0] = draw(st.sampled_from([0.0, -0.0]))
    kind, layout = draw(st.sampled_from(["deterministic", "bernoulli", "bounded"])), draw(st.sampled_from(LAYOUTS))
    rewards = rng.random((states, actions, width)[: draw(st.sampled_from([2, 3]))])
    rewards = np.round(rewards) if draw(st.booleans()) else rewards
    terminal = draw(st.sampled_from([None, rng.random(states) < 0.3, rng.random(probabilities.shape) < 0.3]))
    return {
        "probabilities": layout(probabilities),
        "successors": layout(rng.integers(states, size=probabilities.shape)),
        "rewards": layout(rewards if kind == "bernoulli" else rewards * draw(st.sampled_from([1.0, -3.0, 1e6]))),
        "discount": draw(st.sampled_from([0.0, 5e-324, 0.5, 0.9])),
        "reward_kind": kind,
        "terminal": terminal,
    }


def _examine(model: sp.TabularModel) -> None:
    """Everything that a model promises: a distribution, steps and compiled draws inside the table, a solution."""
    assert (model.probabilities >= 0.0).all()
    np.testing.assert_allclose(model.probabilities.sum(axis=-1), 1.0, atol=2e-9)
    assert 0 <= model.successors.min() <= model.successors.max() < model.states
    assert np.isfinite(model.rewards).all()
    assert 0.0 <= model.discount < 1.0
    possible = model.probabilities > 0.0
    low, high = model.reward_range
    pairs = [(s, a) for s in np.flatnonzero(~model.terminal).tolist() for a in range(model.actions)]
    words, rng = stream(0), np.random.default_rng(0)
    for state, action in pairs:
        allowed = set(model.successors[state, action][possible[state, action]].tolist())
        step = model.step(np.full(50, state), np.full(50, action), rng)
        assert set(step.next_states.tolist()) <= allowed
        assert ((step.rewards >= low) & (step.rewards <= high)).all()
        for _ in range(50):
            reached, reward, ended = draw(model.tables, state, action, words)
            assert reached in allowed
            assert low <= reward <= high
            assert ended in (False, True)
    if np.abs(model.rewards).max() <= 1e7 and model.discount <= 0.99:
        assert np.isfinite(exact.solve(model, sp.HardMax(), 1e-3).values).all()
        assert np.isfinite(exact.solve(model, sp.LogSumExp(0.1), 1e-3).values).all()


@fuzzed
@given(proper())
def test_a_proper_table_works_in_any_layout(table: dict[str, Any]) -> None:
    _examine(sp.TabularModel(**table))


@fuzzed
@given(proper(), st.sampled_from(["probabilities", "successors", "rewards"]), numbers | targets, st.integers(0, 999))
def test_one_hostile_entry(table: dict[str, Any], name: str, entry: Any, place: int) -> None:
    values = np.array(table[name]).astype(object)
    values.reshape(-1)[place % values.size] = entry
    model = _outcome(lambda: sp.TabularModel(**{**table, name: values.tolist()}))
    if model is not None:
        _examine(model)


outcomes = st.tuples(
    numbers | st.just(1.0), targets, numbers, st.sampled_from([False, True, 0, 1, "no", None, np.True_])
)
entries = st.lists(outcomes, max_size=3) | st.just([(1.0, 0, 0.0, False)])
anything = st.sampled_from([5, None, "text", {}, (1.0, 0, 0.0), [(1.0, 0)], object()])


@fuzzed
@given(st.lists(st.lists(entries | anything, min_size=1, max_size=2) | anything, max_size=3) | anything)
def test_hostile_outcomes(table: Any) -> None:
    model = _outcome(lambda: sp.TabularModel.from_outcomes(table, discount=0.5))
    if model is not None:
        _examine(model)


@pytest.mark.parametrize("action", [-1, 2, 2**40, -(2**62)])
def test_a_step_with_an_action_outside_the_table_is_refused(action: int) -> None:
    """Compiled code would read beyond the table."""
    model = sp.models.chain(2)
    with pytest.raises(sp.ModelError, match=f"action {action} is not one of the model's actions 0..1"):
        model.step(np.array([0, 1]), np.array([0, action]), np.random.default_rng(0))
    wrong: list[Any] = [np.array([0.0]), np.array([0, 0]), np.array([0], dtype=np.uint64)]
    for actions in wrong:
        with pytest.raises(sp.ModelError, match=r"actions must be int64 \[n\], got dtype"):
            model.step(np.array([0]), actions, np.random.default_rng(0))
