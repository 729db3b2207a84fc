"""The command line: what it prints, where, and with which exit status."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import smoothplan
from smoothplan import cli, exact, options, specs, summaries
from smoothplan.models import TabularModel
from tests.common import identified

MODULE = [sys.executable, "-m", "smoothplan.cli"]
SCRIPT = [str(Path(sys.executable).with_name("smoothplan"))]

DIGITS = 0.5e-6 + 1e-8
"""Half of the last digit of a value in a table, and the default tolerance."""


class Outcome(NamedTuple):
    status: int
    out: str
    err: str


class Command:
    """Runs the command in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Outcome:
        try:
            status = cli.main(arguments)
        except SystemExit as leave:
            status = int(leave.code or 0)
        return Outcome(status, *self._capsys.readouterr())

    def solve(self, *arguments: str) -> dict[str, Any]:
        """The JSON object of a solve that succeeds and prints nothing else."""
        return _one_object(self("solve", *arguments, "--json"))


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture(autouse=True)
def _plain_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary pipe, whatever the tests run in."""
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def _run(arguments: list[str], **options: Any) -> Outcome:
    done = subprocess.run(arguments, capture_output=True, encoding="utf-8", timeout=60, check=False, **options)
    return Outcome(done.returncode, done.stdout, done.stderr)


def _one_object(outcome: Outcome) -> dict[str, Any]:
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.count("\n") == 1
    found = json.loads(outcome.out)
    assert isinstance(found, dict)
    return found


def _tabular(spec: str) -> TabularModel:
    model = specs.build_model(spec)
    assert isinstance(model, TabularModel)
    return model


def _rows(table: str) -> list[list[str]]:
    """The rows of a printed table of values; cells are two blanks or more apart."""
    lines = table.splitlines()
    (start,) = (number for number, line in enumerate(lines) if line.startswith("state "))
    cells = [re.split(r" {2,}", line.strip()) for line in lines[start + 1 :]]
    return [row for row in cells if len(row) > 1]


# Listings


@pytest.mark.parametrize("kind", ["model", "backup", "planner"])
def test_listings(command: Command, kind: str) -> None:
    registry: dict[str, specs.Factory] = getattr(specs, f"{kind}s".upper())
    outcome = command(f"{kind}s")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out
    for name, factory in registry.items():
        assert re.search(rf"^{name}\b", outcome.out, re.MULTILINE)
        for option in specs.options_of(kind, factory):
            assert f"{option}=" in outcome.out

    listed = _one_object(command(f"{kind}s", "--json"))
    assert list(listed) == [f"{kind}s"]
    assert set(listed[f"{kind}s"]) == set(registry)
    for entry in listed[f"{kind}s"].values():
        assert entry["description"]


def test_a_listing_tells_options_and_defaults(command: Command) -> None:
    models = _one_object(command("models", "--json"))["models"]
    assert models["chain"]["options"] == {"states": 5, "discount": 0.95, "slip": 0.2}
    assert "actions" not in _one_object(command("backups", "--json"))["backups"]["lse"]["options"]


@pytest.mark.parametrize("arguments", [[], ["--help"], ["solve", "--help"], ["plan", "--help"], ["forecast", "--help"]])
def test_help_shows_examples_and_the_version_is_known(command: Command, arguments: list[str]) -> None:
    outcome = command(*arguments)
    assert (outcome.status, outcome.err) == (0, "")
    assert "smoothplan solve --model river-swim" in outcome.out
    assert command("--version") == (0, f"smoothplan {smoothplan.__version__}\n", "")


def test_every_example_of_the_guide_works(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # one saves a file
    following = r"(?: +--\w+(?: +[^-\s]\S*)?)*"
    examples = re.findall(rf"smoothplan (\w+{following})", options.GUIDE.replace("\\\n", ""))
    assert len(examples) == 11
    for example in examples:
        outcome = command(*example.split())
        assert (outcome.status, outcome.err) == (0, ""), example


# Solutions


@pytest.mark.parametrize("model", ["river-swim", "garnet:states=12,seed=3", "two-room:size=2", "gym:FrozenLake-v1"])
def test_a_table_shows_the_exact_values(command: Command, model: str) -> None:
    backups = ["hard-max", "lse:temperature=0.5", "ot:tau=1,lam=0.2,cost=line", "ot:cost=ring", "lse"]
    outcome = command("solve", "--model", model, *(word for backup in backups for word in ("--backup", backup)))
    assert (outcome.status, outcome.err) == (0, "")
    for number, backup in enumerate(backups, start=1):
        assert f"({number}) {backup}\n" in outcome.out

    table = _tabular(model)
    solutions = [exact.solve(table, specs.build_backup(backup, table.actions)) for backup in backups]
    rows = _rows(outcome.out)
    assert len(rows) == table.states
    for state, (_, *cells) in enumerate(rows):
        assert len(cells) == 2 * len(backups)
        for column, solution in enumerate(solutions):
            value, action = cells[2 * column : 2 * column + 2]
            if table.terminal[state]:
                assert (value, action) == ("0", "terminal")
            else:
                assert abs(float(value) - solution.values[state]) <= DIGITS
                assert action.endswith(f"{solution.policy[state].max():.0%}")


def test_json_has_the_whole_solution(command: Command) -> None:
    found = command.solve("--model", "two-room:size=2", "--backup", "lse:temperature=0.3", "--backup", "hard-max")
    table = _tabular("two-room:size=2")
    assert (found["model"], found["discount"]) == ("two-room:size=2", table.discount)
    assert found["states"] == list(range(table.states))
    for solution, backup in zip(found["solutions"], ("lse:temperature=0.3", "hard-max"), strict=True):
        expected = exact.solve(table, specs.build_backup(backup, table.actions))
        assert solution["backup"] == backup
        for name in ("values", "q", "policy"):
            np.testing.assert_array_equal(solution[name], getattr(expected, name))
        assert (solution["error"], solution["iterations"]) == (expected.error, expected.iterations)


def test_chosen_states_come_in_the_order_given(command: Command) -> None:
    choice = ["--state", "4", "--state", "0"]
    values = exact.solve(_tabular("river-swim"), specs.build_backup("hard-max", 2)).values
    rows = _rows(command("solve", "--model", "river-swim", *choice).out)
    assert [row[0] for row in rows] == ["4: place 4", "0: place 0"]
    np.testing.assert_allclose([float(row[1]) for row in rows], values[[4, 0]], rtol=0, atol=DIGITS)
    found = command.solve("--model", "river-swim", *choice)
    assert found["states"] == [4, 0]
    assert found["solutions"][0]["values"] == values[[4, 0]].tolist()


def test_a_long_table_says_what_it_leaves_out(command: Command) -> None:
    model = ["--model", "garnet:states=30"]
    outcome = command("solve", *model)
    assert len(_rows(outcome.out)) == cli.ROWS
    assert "10 more states" in outcome.out
    chosen = [word for state in range(25) for word in ("--state", str(state))]
    assert len(_rows(command("solve", *model, *chosen).out)) == 25
    assert len(command.solve(*model)["states"]) == 30


def test_the_tolerance_is_kept_and_told(command: Command) -> None:
    arguments = ["--model", "river-swim", "--tolerance", "1e-2"]
    (solution,) = command.solve(*arguments)["solutions"]
    assert solution["backup"] == "hard-max"  # what is meant unless said
    assert solution["error"] <= 1e-2
    finest = exact.solve(_tabular("river-swim"), specs.build_backup("hard-max", 2), 1e-11)
    assert 1e-10 < np.abs(solution["values"] - finest.values).max() <= 1e-2 + finest.error
    assert f"off by more than {solution['error']:.1e}" in command("solve", *arguments).out


# Errors

ERRORS = [
    (["nothing"], "invalid choice: 'nothing'"),
    (["models", "two\nlines"], "unrecognized arguments: two lines"),
    (["solve"], "--model"),
    (["solve", "--model", "nowhere"], "unknown model 'nowhere': choose from garnet"),
    (["solve", "--model", "chain:length=5"], "no option 'length': choose from states"),
    (["solve", "--model", "chain", "--backup", "ot:cost=[[0]]"], "2 actions"),
    (["solve", "--model", "chain", "--state", "5"], "--state must be in 0..4, got 5"),
    (["solve", "--model", "chain", "--tolerance", "1e-30"], "tolerance 1e-30 is finer than double precision"),
    (["solve", "--model", "cart-pole"], "cart-pole is not a table of states"),
    (["solve", "--model", "gym:Nowhere-v1"], "gymnasium cannot make 'Nowhere-v1'"),
]


@pytest.mark.parametrize("flags", [[], ["--json"]], ids=["table", "json"])
@pytest.mark.parametrize(("arguments", "complaint"), ERRORS, ids=[" ".join(a) for a, _ in ERRORS])
def test_an_error_is_one_line(command: Command, arguments: list[str], complaint: str, flags: list[str]) -> None:
    _is_refusal(command(*arguments, *(flags if arguments[:1] == ["solve"] else [])), complaint)


def _is_refusal(outcome: Outcome, complaint: str, status: int = 2) -> None:
    assert (outcome.status, outcome.out) == (status, "")
    assert re.fullmatch(r"smoothplan( \w+)?: error: .+\n", outcome.err), outcome.err
    assert complaint in outcome.err


# The real command


@pytest.mark.parametrize("program", [MODULE, SCRIPT], ids=["module", "script"])
def test_the_command_is_installed(program: list[str]) -> None:
    found = _one_object(_run([*program, "solve", "--model", "chain", "--json"]))
    expected = exact.solve(_tabular("chain"), specs.build_backup("hard-max", 2))
    np.testing.assert_allclose(found["solutions"][0]["values"], expected.values, rtol=0, atol=2e-8)
    _is_refusal(_run([*program, "solve", "--model", "nowhere"]), "unknown model")


@pytest.mark.parametrize("arguments", [["models", "--json"], ["solve", "--model", "chain"]])
def test_a_reader_who_left_is_no_error(arguments: list[str]) -> None:
    """The pipe of `smoothplan ... | head -1` when head is first: closed before anything is written."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run([*MODULE, *arguments], stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")
def test_output_that_cannot_be_written_is_an_error() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*MODULE, "models"], stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    _is_refusal(Outcome(done.returncode, "", done.stderr.decode()), "No space left")


# Plans and forecasts

SMALL = ["--model", "garnet:states=20,discount=0.2,seed=1,reward_kind=bernoulli", "--backup", "lse:temperature=1"]


def test_a_plan_shows_value_interval_price_and_truth(command: Command) -> None:
    outcome = command("plan", *SMALL, "--planner", "second-order:epsilon=0.05", "--state", "3", "--exact")
    assert (outcome.status, outcome.err) == (0, "")
    table = _tabular(SMALL[1])
    truth = exact.solve(table, specs.build_backup(SMALL[3], table.actions)).values[3]
    lines = dict(line.split(maxsplit=1) for line in outcome.out.splitlines())
    assert list(lines) == ["value", "bonus", "exact", "action", "calls", "status"]
    value, low, high = map(float, re.findall(r"-?[\d.]+(?:e-?\d+)?", lines["value"])[:3])
    assert low <= value <= high
    assert f"{truth:.6g}" in lines["exact"]
    assert "probability at least 0.9" in lines["value"]
    assert lines["bonus"].endswith("an entropy bonus of at most 0.866")  # log 2 / (1 - 0.2)
    assert "estimate" in lines["action"]
    assert lines["status"].startswith("converged")


def test_a_plan_as_json_is_the_result_and_its_forecast(command: Command) -> None:
    arguments = [*SMALL, "--planner", "smooth-cruiser:epsilon=0.05,delta=0.2", "--seed", "7"]
    found = _one_object(command("plan", *arguments, "--exact", "--json"))
    model = specs.build_model(SMALL[1])
    planner = specs.build_planner("smooth-cruiser:epsilon=0.05,delta=0.2", specs.build_backup(SMALL[3], model.actions))
    result = smoothplan.plan(planner, model, seed=7)
    assert (found["value"], found["interval"], found["calls"]) == (result.value, list(result.interval), result.calls)
    assert found["forecast"] == smoothplan.forecast(planner, model).calls
    assert found["exact"] == exact.solve(_tabular(SMALL[1]), planner.backup).values[0]
    again = _one_object(command("plan", *arguments, "--workers", "2", "--exact", "--json"))
    assert again | {"seconds": found["seconds"]} == found


def test_a_best_action_comes_with_an_interval_for_each(command: Command) -> None:
    planner = ["--planner", "ot-gap-cruiser:epsilon=0.2,delta=0.05"]
    found = _one_object(command("plan", *SMALL, *planner, "--exact", "--json"))
    assert "forecast" not in found
    outcome = command("plan", *SMALL, *planner, "--exact")
    assert (outcome.status, outcome.err) == (0, "")
    *lines, heading, first, second = outcome.out.splitlines()
    texts = dict(line.split(maxsplit=1) for line in lines)
    assert list(texts) == ["value", "bonus", "exact", "action", "gap", "calls", "status"]
    gap = found["details"]["gap"]
    assert texts["gap"] == f"action {found['action']} is within {gap:.4g} of the best with probability at least 0.95"
    assert "forecast" not in texts["calls"]
    assert texts["action"].startswith(f"{found['action']}; estimated policy ")
    assert heading.split() == ["root", "action", "at", "least", "at", "most", "calls", "exact"]
    truth = exact.solve(_tabular(SMALL[1]), specs.build_backup(SMALL[3], 2)).q[0]
    for action, row in enumerate((first, second)):
        name, low, high, calls, value = row.split()
        assert (name, int(calls.replace(",", ""))) == (str(action), found["details"]["action_calls"][action])
        assert [float(low), float(high)] == pytest.approx(found["q_intervals"][action], rel=1e-5)
        assert float(value) == pytest.approx(truth[action], rel=1e-5)


def test_an_uncertified_best_action_is_called_an_estimate() -> None:
    model = specs.build_model(SMALL[1])
    planner = specs.build_planner("ot-gap-cruiser:epsilon=0.3", specs.build_backup(SMALL[3], model.actions))
    result = smoothplan.plan(planner, model, 0)
    doubtful = replace(result, details=replace(identified(result), certified=False, gap=-0.1))
    lines = dict(summaries.plan_lines(doubtful))
    assert lines["gap"] == f"action {result.action} is the best (estimate: thresholds do not cover delta)"
    assert lines["action"].startswith(f"{result.action} (estimate)")
    assert "gap 0 (estimate)" in repr(doubtful)
    assert "(estimate)" not in repr(result)
    assert "probability" not in lines["value"]


def test_a_forecast_tells_the_price_and_every_level(command: Command) -> None:
    arguments = [*SMALL, "--planner", "second-order:epsilon=0.01"]
    found = _one_object(command("forecast", *arguments, "--json"))
    assert found["calls"] == found["reference_calls"] + found["repeats"] * found["sample_calls"]
    assert found["bias"] + found["noise"] <= 0.01 * (1 + 1e-9)
    text = command("forecast", *arguments).out
    assert f"{found['calls']:,} simulator calls" in text
    for level in found["levels"][:-1]:
        assert level["kind"] in text
        assert f"{level['calls']:,}" in text
    _is_refusal(command("forecast", *SMALL, "--planner", "ot-gap-cruiser:epsilon=0.1"), "OTGapCruiser has no forecast")


def test_limits_and_vector_states(command: Command) -> None:
    few = _one_object(command("plan", *SMALL, "--planner", "second-order:epsilon=0.01", "--max-calls", "999", "--json"))
    assert few["calls"] <= 999
    assert few["status"] == "max_calls"
    arguments = ["plan", "--model", "cart-pole:discount=0.2", "--state", "0,0,0.1,0"]
    assert _one_object(command(*arguments, "--json"))["status"] == "converged"
    assert "terminal" in command("plan", "--model", "frozen-lake:discount=0.2", "--state", "5").out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--model", "river-swim", "--planner", "second-order:epsilon=0.1"], "simulator calls, more than"),
        (["--model", "river-swim", "--backup", "hard-max"], "smooth backup"),
        ([*SMALL, "--bias", "0.1"], "--bias chooses the backup"),
        ([*SMALL, "--state", "here"], "--state must be a number"),
        ([*SMALL, "--planner", "third-order:epsilon=0.1"], "unknown planner"),
        ([*SMALL, "--max-calls", "-1"], "max_calls"),
        (["--model", "cart-pole:discount=0.2", "--exact"], "--exact needs a table"),
        (["--model", "cart-pole:discount=0.2", "--state", "1,2"], "shape"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_in_one_line(command: Command, arguments: list[str], complaint: str) -> None:
    _is_refusal(command("plan", *arguments), complaint)
    _is_refusal(command("plan", *arguments, "--json"), complaint)


# Own simulators

OWN = """
import numpy as np
import smoothplan as sp
from beside import LOW  # a module in the same folder

fence = 10.0


def walk(state, action, rng):
    if state[0] > fence:
        raise RuntimeError("too far")
    place = float(np.clip(state[0] + 0.3 * (2 * action - 1) + 0.1 * rng.standard_normal(), -1, 1))
    return np.array([place]), 0.5 * (place - 1)


def make_model(discount=0.2, limit=10.0):
    global fence
    fence = limit
    declared = dict(reward_range=(LOW, 0), terminates=False, initial_state=[0.2])
    return sp.VectorModel.from_scalar(walk, actions=2, discount=discount, **declared)


class Table:
    def __new__(cls, states):
        return sp.models.chain(states=states)


table = sp.models.chain(states=3)
nothing = lambda: None
number = 7
wrong = lambda: 1 / 0
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file of a user's, with a module beside it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside.py").write_text("LOW = -1\n")
    (tmp_path / "my_file.py").write_text(OWN)
    return str(tmp_path / "my_file.py")


def test_every_command_runs_a_file_of_the_user(command: Command, own: str, tmp_path: Path) -> None:
    model = ["--simulator", f"{own}:make_model,discount=0.3"]
    alone = _one_object(command("plan", *model, "--json"))
    assert alone["status"] == "converged"
    assert _one_object(command("forecast", *model, "--json"))["calls"] == alone["forecast"]
    assert command.solve("--simulator", f"{own}:Table,states=4")["states"] == [0, 1, 2, 3]
    assert command.solve("--simulator", f"{own}:table")["model"] == f"{own}:table"
    checked = command("check", *model, "--rounds", "5")
    assert (checked.status, checked.err) == (0, "")
    assert re.fullmatch(r"passed .*\nrewards .*declared \[-1, 0\], bounded\nnext .*\nends .*\n", checked.out)

    failure = str(tmp_path / "failure.json")
    guarded = f"{own}:make_model,limit=0.3"
    outcome = command("plan", "--simulator", guarded, "--failure", failure)
    _is_refusal(outcome, "the simulator raised RuntimeError: too far (state [0.")
    assert f"repeat the call with: smoothplan reproduce {failure} --simulator {guarded}" in outcome.err
    _is_refusal(command("reproduce", failure), f"which you must name: add --simulator {guarded}")
    _is_refusal(command("reproduce", failure, "--simulator", guarded), "RuntimeError: too far")
    assert "rewards" in _one_object(command("reproduce", failure, "--simulator", f"{own}:make_model", "--json"))


def test_processes_know_a_file_of_the_user(command: Command, own: str) -> None:
    arguments = ["plan", "--simulator", f"{own}:make_model,discount=0.1", "--json"]
    alone, together = (_one_object(command(*arguments, *more)) for more in ([], ["--workers", "2"]))
    assert alone | {"seconds": together["seconds"]} == together


def test_what_a_file_prints_is_no_part_of_the_answer(command: Command, own: str) -> None:
    Path(own).write_text(f"{OWN}\nprint('hello')")
    outcome = command("solve", "--simulator", f"{own}:table", "--json")
    assert (outcome.err, next(iter(json.loads(outcome.out)))) == ("hello\n", "model")


def test_a_module_is_named_by_its_dots(command: Command, own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(own).parent)
    monkeypatch.delitem(sys.modules, "my_file", raising=False)
    assert len(command.solve("--simulator", "my_file:table")["states"]) == 3


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("", "--simulator must be my_file.py:make_model or package.module:make_model, got"),
        (
            ":mak_model",
            "has no 'mak_model': did you mean make_model? choose from walk, make_model, Table, table, nothing",
        ),
        (":make_model,limt=1", "has no option 'limt': did you mean limit? choose from discount, limit"),
        (":make_model,3", "expected key=value, got '3'"),
        (
            ":make_model,discount=none",
            "raised TypeError: discount must be a number, got None (",
        ),
        (":Table", "needs states: write"),
        (":table,states=4", "is no function, and takes no options, got states"),
        (":nothing", "returned None, not a model"),
        (":number", "is 7, not a model: model must have actions"),
        (":wrong", "my_file.py:wrong raised ZeroDivisionError: division by zero ("),
        (":wrong", "my_file.py, line 31)"),
    ],
)
def test_a_file_that_makes_no_model(command: Command, own: str, name: str, complaint: str) -> None:
    _is_refusal(command("check", "--simulator", f"{own}{name}"), complaint)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("1 +", "raised SyntaxError: invalid syntax (broken.py, line 1) ("),
        ("import nowhere_at_all", "raised ModuleNotFoundError: No module named 'nowhere_at_all' ("),
        ("\nraise SystemExit(3)", "raised SystemExit: 3 ("),
        ("\nraise SystemExit(3)", "broken.py, line 2)"),
    ],
)
def test_a_file_that_does_not_run(command: Command, tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "broken.py").write_text(text)
    _is_refusal(command("plan", "--simulator", f"{tmp_path / 'broken.py'}:make_model"), complaint)
    _is_refusal(command("plan", "--simulator", f"{tmp_path / 'gone.py'}:make_model"), "there is no file")
    _is_refusal(command("plan", "--simulator", "gone.module:make_model"), "there is no module 'gone.module'")


def test_a_spec_runs_no_file(command: Command, own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smoothplan.simulators.load", lambda text: pytest.fail(f"{text} was run"))
    _is_refusal(command("plan", "--model", f"{own}:make_model"), "is run by --simulator")
    _is_refusal(command("plan", "--model", "chain", "--simulator", f"{own}:table"), "not allowed with")


# Decisions and comparisons


class Asked(NamedTuple):
    """What a command asked of the library."""

    arguments: tuple[Any, ...]
    options: dict[str, Any]


class StandIn:
    """Answers in place of `compare`, and remembers what it was asked."""

    def __call__(self, *arguments: Any, **options: Any) -> "StandIn":
        self.asked = Asked(arguments, options)
        return self

    def summary(self) -> str:
        return "action 1 [of 2]"

    table = summary

    def to_json(self) -> str:
        return '{"action": 1}'

    def to_csv(self, path: str) -> None:
        Path(path).write_text("rows")

    def figure(self) -> "StandIn":
        return self

    def write_html(self, path: str) -> None:
        Path(path).write_text("figure")


def test_a_decision_is_the_librarys(command: Command) -> None:
    arguments = ["decide", "--model", "chain", "--state", "2", "--calls", "500", "--epsilon", "0.1", "--delta", "0.2"]
    arguments += ["--seed", "3", "--workers", "1"]
    decision = smoothplan.decide(smoothplan.models.chain(), 2, calls=500, epsilon=0.1, delta=0.2, seed=3)
    printed, expected = _one_object(command(*arguments, "--json")), json.loads(decision.to_json())
    assert {**printed, "seconds": 0.0} == {**expected, "seconds": 0.0}
    status, out, err = command(*arguments)
    assert (status, err) == (0, "")
    assert out.splitlines()[:-1] == decision.summary().splitlines()[:-1]  # all but the time
    assert _one_object(command("decide", "--model", "chain", "--seconds", "0.1", "--json"))["calls"] > 0
    _is_refusal(command(*arguments, "--seconds", "1"), "not allowed with")


def test_a_comparison_is_asked_for_and_saved(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = StandIn()
    monkeypatch.setattr(smoothplan, "compare", found, raising=False)
    saved = [str(tmp_path / name) for name in ("rows.csv", "figure.html")]
    planners = ["--planner", "uct", "--planner", "ot-gape:epsilon=0.1"]
    arguments = ["compare", "--model", "chain", *planners, "--calls", "1000,1e4"]
    assert command(*arguments, "--seeds", "3", "--csv", saved[0], "--figure", saved[1]).out == "action 1 [of 2]\n"
    assert [Path(path).read_text() for path in saved] == ["rows", "figure"]
    (made, model, state), options = found.asked
    assert {name: planner.backup.temperature for name, planner in made.items()} == {"uct": 0, "ot-gape:epsilon=0.1": 1}
    assert (model.states, state) == (5, None)
    assert options == {"calls": [1_000, 10_000], "seeds": 3, "progress": False}
    assert _one_object(command(*arguments, "--backup", "hard-max", "--json")) == {"action": 1}
    assert {planner.backup for planner in found.asked.arguments[0].values()} == {smoothplan.HardMax()}
    command(*arguments[:3], *planners[2:], *planners[2:], "--backup", "lse", "--backup", "hard-max", "--calls", "9")
    assert list(found.asked.arguments[0]) == [f"ot-gape:epsilon=0.1 with {name}" for name in ("lse", "hard-max")]
    _is_refusal(command(*arguments, *planners), "--planner must name each planner once, got uct twice")
    _is_refusal(command(*arguments, "--calls", "1.5"), "must be whole numbers between commas")
    _is_refusal(command(*arguments, *planners[:2], *["--backup", "hard-max"] * 2), "got 3 planners and 2 backups")


# Defaults

ENVIRONMENTS: list[tuple[str, float | None]] = [
    ("gym:FrozenLake-v1,map_name=8x8,discount=0.99", 0.4168),
    ("gym:Taxi-v4,discount=0.99", 4.2495),
    ("gym:CartPole-v1,discount=0.99", None),
]


@pytest.mark.parametrize(("model", "truth"), ENVIRONMENTS, ids=[name for name, _ in ENVIRONMENTS])
def test_an_environment_is_planned_in_one_line(command: Command, model: str, truth: float | None) -> None:
    outcome = command("plan", "--model", model, *([] if truth is None else ["--exact"]))
    assert (outcome.status, outcome.err) == (0, "")
    lines = dict(line.split(maxsplit=1) for line in outcome.out.splitlines())
    assert list(lines)[:4] == ["backup", "planner", "limit", "value"]
    assert lines["backup"].startswith("lse:temperature=")
    assert lines["planner"].startswith("reference-cruiser:order=1")
    assert "estimate" in lines["value"]
    assert "with probability at least 0.9" in lines["value"]
    assert "with probability at least 0.9" in lines["policy"]
    assert "the reference claims" in lines["means"]
    value, low, _, high = map(float, re.findall(r"-?\d[\d.]*(?:e-?\d+)?", lines["value"]))
    assert low <= value <= high
    if truth is not None:
        assert "inside" in lines["exact"]
        assert low <= truth + 1e-4
        assert abs(value - truth) <= 0.05


def test_a_choice_is_told_in_json_and_limits_are_kept(command: Command) -> None:
    model = ["--model", "gym:FrozenLake-v1,discount=0.99"]
    found = _one_object(command("plan", *model, "--json"))
    assert set(found["chosen"]) == {"backup", "planner", "limit"}
    assert found["calls"] <= 2_000_000
    few = _one_object(command("plan", *model, "--max-calls", "9999", "--json"))
    assert set(few["chosen"]) == {"backup", "planner"}
    assert few["calls"] <= 9999
    given = _one_object(command("plan", *model, "--backup", "lse:temperature=0.1", "--json"))
    assert set(given["chosen"]) == {"planner", "limit"}
    long = _one_object(command("plan", "--model", "chain:discount=0.98", "--exact", "--json"))
    assert "chosen" in long
    assert long["interval"][0] <= long["exact"] <= long["interval"][1]


def test_short_horizons_are_planned_by_recursion_as_ever(command: Command) -> None:
    found = _one_object(command("plan", *SMALL[:2], "--json"))
    named = _one_object(command("plan", *SMALL, "--planner", "second-order:epsilon=0.1", "--json"))
    assert found == named | {"seconds": found["seconds"]}
    assert "chosen" not in found
    assert "of the reference" not in command("plan", *SMALL[:2]).out


# The ordinary value


@pytest.mark.parametrize("planner", [[], ["--planner", "reference-cruiser:epsilon=0.05"]])
def test_a_bias_gives_an_interval_of_the_ordinary_value(command: Command, planner: list[str]) -> None:
    arguments = ["plan", "--model", "chain:discount=0.95", "--bias", "0.5", *planner, "--max-calls", "1000000"]
    found = _one_object(command(*arguments, "--exact", "--json"))
    (low, high), (least, most) = found["interval"], found["gap"]
    assert low <= found["exact"] <= high
    assert (least, most) == (0.0, pytest.approx(0.5))
    assert low == max(found["regularised"]["interval"][0] - most, 0.0)
    outcome = command(*arguments, "--exact")
    assert (outcome.status, outcome.err) == (0, "")
    assert re.search(r"^value .* the ordinary optimal value$", outcome.out, re.MULTILINE)
    assert re.search(r"^exact .* inside the interval$", outcome.out, re.MULTILINE)
    assert "is too large by 0 to 0.5, for certain" in outcome.out


# Episodes


def test_an_episode_is_played(command: Command) -> None:
    arguments = ["act", "--env", "FrozenLake-v1,is_slippery=false", "--calls", "500", "--episodes", "2", "--seed", "3"]
    found = _one_object(command(*arguments, "--json"))
    assert [episode["score"] for episode in found["episodes"]] == [1.0, 1.0]
    assert [episode["end"] for episode in found["episodes"]] == ["terminated"] * 2
    assert (found["mean"], found["error"], found["seed"]) == (1.0, 0.0, 3)
    outcome = command(*arguments)
    assert (outcome.status, outcome.err) == (0, "")
    assert re.search(r"^return +1 ± 0 \(standard error\), of 2 episodes of FrozenLake-v1$", outcome.out, re.MULTILINE)
    few = _one_object(command("act", "--env", "gym:CliffWalking-v1,discount=0.9", "--max-steps", "3", "--json"))
    assert (few["mean"], few["discount"]) == (-3.0, 0.9)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "--env"),
        (["--env", "map_name=8x8"], "an environment is Id-v1,key=value"),
        (["--env", "Pendulum-v1"], "cannot be made a generative model"),
        (["--env", "FrozenLake-v1,calls=5"], "calls is not an option of an environment"),
        (["--env", "FrozenLake-v1", "--calls", "5", "--seconds", "1"], "calls and seconds cannot both be given"),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_line(command: Command, arguments: list[str], complaint: str) -> None:
    _is_refusal(command("act", *arguments), complaint)
