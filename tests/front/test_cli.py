"""The command line: its answers, its errors, and its exit status."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import smoothplan
from smoothplan import cli, specs
from smoothplan.models import TabularModel
from smoothplan.theory import exact

MODULE = [sys.executable, "-m", "smoothplan.cli"]
SCRIPT = [str(Path(sys.executable).with_name("smoothplan"))]


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

    def text(self, *arguments: str) -> str:
        """The output of a command that succeeds."""
        outcome = self(*arguments)
        assert (outcome.status, outcome.err) == (0, "")
        return outcome.out

    def json(self, *arguments: str) -> dict[str, Any]:
        """The JSON object of a command that prints nothing else."""
        return _one_object(self(*arguments, "--json"))

    def refused(self, *arguments: str, by: str) -> None:
        _is_refusal(self(*arguments), by)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def _run(arguments: list[str], **options: Any) -> Outcome:
    done = subprocess.run(arguments, capture_output=True, encoding="utf-8", timeout=60, check=False, **options)
    return Outcome(done.returncode, done.stdout, done.stderr)


def _one_object(outcome: Outcome) -> dict[str, Any]:
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.count("\n") == 1
    found = json.loads(outcome.out)
    assert isinstance(found, dict)
    return found


def _is_refusal(outcome: Outcome, complaint: str) -> None:
    assert (outcome.status, outcome.out) == (2, "")
    assert re.fullmatch(r"smoothplan( \w+)?: error: .+\n", outcome.err), outcome.err
    assert complaint in outcome.err


def _tabular(spec: str) -> TabularModel:
    model = specs.build_model(spec)
    assert isinstance(model, TabularModel)
    return model


def _lines(text: str) -> dict[str, str]:
    return dict(line.split(maxsplit=1) for line in text.splitlines())


# Help and listings


@pytest.mark.parametrize("kind", specs.REGISTRIES)
def test_a_listing_has_every_entry_with_its_options(command: Command, kind: str) -> None:
    printed, listed = command.text(f"{kind}s"), command.json(f"{kind}s")
    assert list(listed) == [f"{kind}s"]
    assert list(listed[f"{kind}s"]) == list(specs.REGISTRIES[kind])
    for name, factory in specs.REGISTRIES[kind].items():
        entry = listed[f"{kind}s"][name]
        assert f"{name}: {entry['description']}\n" in f"{printed}\n"
        assert list(entry["options"]) == list(specs.options_of(kind, factory))
    assert all(f"{option}=" in printed for option in entry["options"])


def test_an_entry_is_explained_by_its_docstring(command: Command) -> None:
    assert command.json("models", "chain")["models"]["chain"]["options"] == {"states": 5, "discount": 0.95, "slip": 0.2}
    assert "delta=0.1: the probability" in command.text("planners", "ot-gape")
    assert "\n    epsilon=required: " in command.text("planners", "ot-gape")
    command.refused("planners", "ot-gap", by="unknown planner 'ot-gap': did you mean ot-gape?")


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_option_is_explained(command: Command, name: str) -> None:
    for option, (_, text) in cli.COMMANDS[name].parameters().items():
        assert text or option in ("model", "progress"), option
    assert "smoothplan solve --model river-swim" in command.text(name, "--help")
    assert command.text() == command.text("--help")
    assert command.text("--version") == f"smoothplan {smoothplan.__version__}\n"


def test_every_example_of_the_guide_works(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # one saves a file
    following = r"(?: +--\w+(?: +[^-\s]\S*)?)*"
    examples = re.findall(rf"smoothplan (\w+(?: ot-gape)?{following})", cli.GUIDE.replace("\\\n", ""))
    assert len(examples) == 11
    for example in examples:
        command.text(*example.split())
    assert (tmp_path / "seen.dot").read_text().startswith("digraph explored {")


# Solutions


def test_a_table_shows_the_exact_values(command: Command) -> None:
    model, backups = "gym:FrozenLake-v1", ["hard-max", "ot:tau=1,lam=0.2,cost=line"]
    arguments = ["solve", "--model", model, *(word for backup in backups for word in ("--backup", backup))]
    out, found, table = command.text(*arguments), command.json(*arguments), _tabular(model)
    assert (found["model"], found["discount"], found["states"]) == (
        repr(table),
        table.discount,
        list(range(table.states)),
    )
    rows = [re.split(r" {2,}", line.strip()) for line in out.splitlines() if re.match(r"\d", line)]
    assert len(rows) == table.states
    for number, (backup, solution) in enumerate(zip(backups, found["solutions"], strict=True)):
        assert f"({number + 1}) {backup}\n" in out
        expected = exact.solve(table, specs.build_backup(backup, table.actions))
        for name in ("values", "q", "policy"):
            np.testing.assert_array_equal(solution[name], getattr(expected, name))
        assert (solution["backup"], solution["error"]) == (backup, expected.error)
        for state, row in enumerate(rows):
            value, action = row[2 * number + 1 : 2 * number + 3]
            if table.terminal[state]:
                assert (value, action) == ("0", "terminal")
            else:
                assert abs(float(value) - expected.values[state]) <= 0.5e-6 + 1e-8  # half of the last digit
                assert action.endswith(f"{expected.policy[state].max():.0%}")


def test_states_and_tolerance_are_chosen(command: Command) -> None:
    arguments = ["solve", "--model", "river-swim", "--state", "4", "--state", "0", "--tolerance", "1e-2"]
    found = command.json(*arguments)
    (solution,) = found["solutions"]
    assert (found["states"], solution["backup"]) == ([4, 0], "hard-max")
    finest = exact.solve(_tabular("river-swim"), smoothplan.HardMax(), 1e-11)
    assert 1e-10 < np.abs(solution["values"] - finest.values[[4, 0]]).max() <= 1e-2 + finest.error
    out = command.text(*arguments)
    assert re.findall(r"^\d: place \d", out, re.MULTILINE) == ["4: place 4", "0: place 0"]
    assert f"off by more than {solution['error']:.1e}" in out
    assert "10 more states" in command.text("solve", "--model", "garnet:states=30")


# Errors. Those of specs are in test_specs.

SMALL = ["--model", "garnet:states=20,discount=0.2,seed=1,reward_kind=bernoulli", "--backup", "lse:temperature=1"]

ERRORS = [
    ("nothing", "invalid choice: 'nothing'"),
    ("models chain two\nlines", "unrecognized arguments: two lines"),
    ("solve", "--model"),
    ("solve --model nowhere", "unknown model 'nowhere': choose from"),
    ("solve --model chain --state 5", "--state must be in 0..4, got 5"),
    ("solve --model cart-pole", "model must be a table of states"),
    ("plan --model river-swim --planner second-order:epsilon=0.1", "simulator calls, more than"),
    ("plan --model chain --backup lse --bias 0.1", "--bias chooses the backup"),
    ("plan --model chain --state 1,x", "--state: must be a number or numbers between commas, got '1,x'"),
    ("plan --model cart-pole:discount=0.2 --exact", "model must be a table of states"),
    ("plan --model cart-pole:discount=0.2 --state 1,2", "shape"),
    ("plan --model chain --planner mdp-gape:epsilon=0.1 --graph seen.svg", "--graph must end in .json or .dot"),
    ("plan --model chain --planner mdp-gape:epsilon=0.1 --graph nowhere/a.dot", "in a folder that exists"),
    ("plan --model chain --planner uct --graph seen.dot", "--graph needs a planner that explores a graph"),
    ("forecast --model chain --planner ot-gap-cruiser:epsilon=0.1", "OTGapCruiser has no forecast"),
    ("decide --model chain --calls 5 --seconds 1", "calls and seconds cannot both be given"),
    ("compare --model chain --planner uct", "--calls"),
    ("act", "--env"),
    ("act --env map_name=8x8", "an environment is Id-v1,key=value"),
]


@pytest.mark.parametrize(("words", "complaint"), ERRORS, ids=[words for words, _ in ERRORS])
def test_an_error_is_one_line(command: Command, words: str, complaint: str) -> None:
    arguments = words.split(" ")
    command.refused(*arguments, by=complaint)
    if len(arguments) > 1:
        command.refused(*arguments, "--json", by=complaint)


# The real command


@pytest.mark.parametrize("program", [MODULE, SCRIPT], ids=["module", "script"])
def test_the_command_is_installed(program: list[str]) -> None:
    assert len(_one_object(_run([*program, "solve", "--model", "chain", "--json"]))["states"]) == 5
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


def test_a_plan_is_the_librarys_beside_its_forecast_and_the_truth(command: Command) -> None:
    text = "smooth-cruiser:epsilon=0.05,delta=0.2"
    arguments = ["plan", *SMALL, "--planner", text, "--seed", "7", "--exact"]
    found, model = command.json(*arguments), _tabular(SMALL[1])
    planner = specs.build_planner(text, specs.build_backup(SMALL[3], model.actions))
    result, truth = smoothplan.plan(planner, model, seed=7), exact.solve(model, planner.backup)
    extra = {"forecast": smoothplan.forecast(planner, model).calls, "exact": truth.values[0]}
    assert found == json.loads(result.to_json()) | extra | {"seconds": found["seconds"]}
    assert command.json(*arguments, "--workers", "2") == found | {"seconds": pytest.approx(found["seconds"], abs=60)}
    lines = _lines(command.text(*arguments))
    assert list(lines) == ["value", "bonus", "exact", "action", "calls", "status"]
    assert f"{truth.values[0]:.6g}, inside" in lines["exact"]
    assert "probability at least 0.8" in lines["value"]
    assert lines["bonus"].endswith("an entropy bonus of at most 0.866")  # log 2 / (1 - 0.2)
    assert lines["calls"].startswith(f"{found['calls']:,}, forecast {found['forecast']:,} at most")
    assert lines["status"].startswith("converged")


def test_a_best_action_comes_with_an_interval_for_each(command: Command) -> None:
    arguments = ["plan", *SMALL, "--planner", "ot-gap-cruiser:epsilon=0.2,delta=0.05", "--exact"]
    found = command.json(*arguments)
    assert "forecast" not in found
    *lines, heading, first, second = command.text(*arguments).splitlines()
    texts, gap = _lines("\n".join(lines)), found["details"]["gap"]
    assert list(texts) == ["value", "bonus", "exact", "action", "gap", "calls", "status"]
    assert texts["gap"] == f"action {found['action']} is within {gap:.4g} of the best with probability at least 0.95"
    assert texts["action"].startswith(f"{found['action']}; estimated policy ")
    assert heading.split() == ["root", "action", "at", "least", "at", "most", "calls", "exact"]
    truth = exact.solve(_tabular(SMALL[1]), specs.build_backup(SMALL[3], 2)).q[0]
    for action, row in enumerate((first, second)):
        name, low, high, calls, value = row.split()
        assert (name, int(calls.replace(",", ""))) == (str(action), found["details"]["action_calls"][action])
        numbers = [*found["q_intervals"][action], truth[action]]
        assert [float(low), float(high), float(value)] == pytest.approx(numbers, rel=1e-5)


def test_limits_and_vector_states(command: Command) -> None:
    few = command.json("plan", *SMALL, "--planner", "second-order:epsilon=0.01", "--max-calls", "1e3")
    assert (few["calls"] <= 1_000, few["status"]) == (True, "max_calls")
    price = command.text("forecast", *SMALL, "--planner", "second-order:epsilon=0.01")
    assert f"at most {few['forecast']:,} simulator calls" in price
    assert command.json("plan", "--model", "cart-pole:discount=0.2", "--state", "0,0,0.1,0")["status"] == "converged"
    assert "terminal" in command.text("plan", "--model", "frozen-lake:discount=0.2", "--state", "5")


def test_a_planner_is_chosen_for_a_long_horizon_only(command: Command) -> None:
    model = ["--model", "gym:FrozenLake-v1,discount=0.99"]
    few = command.json("plan", *model, "--max-calls", "9999")
    assert set(few["chosen"]) == {"backup", "planner"}
    assert few["calls"] <= 9999
    lines = _lines(command.text("plan", *model, "--max-calls", "9999"))
    assert re.fullmatch(r"lse:temperature=.*\(chosen\)", lines["backup"])
    assert re.fullmatch(r"reference-cruiser:order=1.*\(chosen\)", lines["planner"])
    assert set(command.json("plan", *model, "--backup", "lse:temperature=0.1")["chosen"]) == {"planner", "limit"}
    long = command.json("plan", "--model", "chain:discount=0.98", "--exact")
    assert set(long["chosen"]) == {"backup", "planner", "limit"}
    assert long["interval"][0] <= long["exact"] <= long["interval"][1]
    short = command.json("plan", *SMALL[:2])
    named = command.json("plan", *SMALL, "--planner", specs.DEFAULT_PLANNER)
    assert short == named | {"seconds": short["seconds"]}
    assert short["chosen"] == {}


@pytest.mark.parametrize("planner", [[], ["--planner", "reference-cruiser:epsilon=0.05"]])
def test_a_bias_gives_an_interval_of_the_unregularised_value(command: Command, planner: list[str]) -> None:
    arguments = ["plan", "--model", "chain", "--bias", "0.5", *planner, "--max-calls", "100000", "--exact"]
    found = command.json(*arguments)
    assert found["interval"][0] <= found["exact"] <= found["interval"][1]
    assert found["bonus"] == [0.0, pytest.approx(0.5)]
    out = command.text(*arguments)
    assert re.search(r"^value .* the unregularised optimal value$", out, re.MULTILINE)
    assert re.search(r"^exact .* inside the interval$", out, re.MULTILINE)


# Own simulators. Errors of loading are in test_specs.


def test_every_command_runs_a_file_of_the_user(command: Command, own: str, tmp_path: Path) -> None:
    model = ["--simulator", f"{own}:make_model,discount=0.3"]
    alone = command.json("plan", *model)
    assert alone["status"] == "converged"
    assert command.json("plan", *model, "--workers", "2") == alone | {"seconds": pytest.approx(0.0, abs=60)}
    assert command.json("forecast", *model)["calls"] == alone["forecast"]
    assert command.json("solve", "--simulator", f"{own}:table")["states"] == [0, 1, 2]
    checked = command.text("check", *model, "--rounds", "5")
    assert re.fullmatch(r"passed .*\nrewards .*declared \[-1, 0\], bounded\nnext .*\nends .*\n", checked)

    failure = str(tmp_path / "failure.json")
    guarded = f"{own}:make_model,limit=0.3"
    outcome = command("plan", "--simulator", guarded, "--failure", failure)
    _is_refusal(outcome, "the simulator raised RuntimeError: too far (state [0.")
    assert "; so far, PlanResult(value " in outcome.err
    assert f"repeat the call with: smoothplan reproduce {failure} --simulator {guarded}" in outcome.err
    command.refused("reproduce", failure, by=f"which you must name: add --simulator {guarded}")
    command.refused("reproduce", failure, "--simulator", guarded, by="RuntimeError: too far")
    assert "rewards" in command.json("reproduce", failure, "--simulator", f"{own}:make_model")
    call = json.loads(Path(failure).read_text())["call"] | {"states": [0], "actions": [0], "dtype": "<i8", "row": 0}
    Path(failure).write_text(json.dumps({"model": "chain", "call": call}))  # a model that a spec names
    assert command.json("reproduce", failure)["terminals"] == [False]
    Path(failure).write_text("[1, 2]")
    command.refused("reproduce", failure, by=f"{failure} is not a failing simulator call saved by a plan")


def test_a_print_in_a_file_is_no_part_of_the_answer(command: Command, own: str) -> None:
    Path(own).write_text(Path(own).read_text() + "\nprint('hello')")
    outcome = command("solve", "--simulator", f"{own}:table", "--json")
    assert (outcome.err, next(iter(json.loads(outcome.out)))) == ("hello\n", "model")


def test_a_spec_runs_no_file(command: Command, own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("smoothplan.specs.load", lambda text: pytest.fail(f"{text} was run"))
    command.refused("plan", "--model", f"{own}:make_model", by="is run by --simulator")
    command.refused("plan", "--model", "chain", "--simulator", f"{own}:table", by="not allowed with")


# Decisions, comparisons, episodes


def test_a_decision_is_the_librarys(command: Command) -> None:
    words = "decide --model chain --state 2 --calls 500 --epsilon 0.1 --delta 0.2 --seed 3 --workers 1"
    decision = smoothplan.decide(smoothplan.models.chain(), 2, calls=500, epsilon=0.1, delta=0.2, seed=3)
    expected = json.loads(decision.to_json())
    assert command.json(*words.split()) == expected | {"seconds": pytest.approx(0.0, abs=60)}
    assert command.text(*words.split()).splitlines()[:-1] == decision.summary().splitlines()[:-1]  # all but the time
    assert command.json("decide", "--model", "chain", "--seconds", "0.1")["calls"] > 0


def test_a_comparison_is_the_librarys_and_saved(command: Command, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    arguments = ["compare", "--model", "chain", "--calls", "100,2e2", "--seeds", "2", "--planner", "uct"]
    both = [*arguments, "--planner", "ot-gape:epsilon=0.1"]
    found = command.json(*both, "--csv", str(rows))
    assert len(found["rows"]) == 2 * 2 * 2
    assert len(rows.read_text().splitlines()) == 1 + 8
    assert command.text(*both).splitlines()[0].split()[0] == "planner"
    planners = {"uct": smoothplan.UCT(), "ot-gape:epsilon=0.1": smoothplan.OTGapE(smoothplan.LogSumExp(1, 2), 0.1)}
    expected = smoothplan.compare(planners, smoothplan.models.chain(), calls=[100, 200], seeds=2)
    for row, other in zip(found["rows"], expected.rows, strict=True):
        assert row | {"seconds": 0.0} == other | {"seconds": 0.0}
    hard = command.json(*arguments, "--planner", "sparse-sampling:1", "--backup", "hard-max")
    assert {row["exact"] for row in hard["rows"]} == {exact.solve(_tabular("chain"), smoothplan.HardMax()).values[0]}
    assert all(row["exact"] is None for row in command.json(*arguments, "--no-exact")["rows"])


def test_an_episode_is_played(command: Command) -> None:
    arguments = ["act", "--env", "FrozenLake-v1,is_slippery=false", "--calls", "500", "--episodes", "2", "--seed", "3"]
    found = command.json(*arguments)
    assert [(episode["score"], episode["end"]) for episode in found["episodes"]] == [(1.0, "terminated")] * 2
    assert (found["mean"], found["error"], found["seed"]) == (1.0, 0.0, 3)
    out = command.text(*arguments)
    assert re.search(r"^0 +1 .* terminated$\n(.*\n)*return +1 ± 0 \(standard error\), of 2 episodes", out, re.MULTILINE)
    few = command.json("act", "--env", "gym:CliffWalking-v1,discount=0.9", "--max-steps", "3")
    assert (few["mean"], few["discount"]) == (-3.0, 0.9)
