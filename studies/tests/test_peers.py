"""The study of peers: its problems and rivals, its rows, and claims that notice what is wrong."""

import math
from collections.abc import Callable

import numpy as np
import pytest

import smoothplan as sp
from studies import peers
from studies.base import Cell, Row
from studies.findings import Findings
from studies.peer_problems import BUILT, race_track, two_queues
from studies.rivals import HAS_MCTX, gumbel, kl_bounds, kl_olop, lengths
from studies.tests.studied import small_run

TINY = peers.Settings(pairs=2, budgets=(200, 400), one_tree=200, problems=("river swim", "two queues"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Row], Findings]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peers, "HAS_MCTX", False)  # compiling takes long
        return small_run(peers.STUDY, TINY, tmp_path_factory.mktemp("peers"))


def test_rows_have_what_findings_need(small: tuple[list[Row], Findings]) -> None:
    rows = small[0]
    assert len(rows) == 2 * 2 * len(peers.OURS) * 2
    for row in rows:
        assert 0.0 <= row.result["regret"] <= 1.0
        assert bool(row.result["method"]) == (row.settings["planner"] == peers.DECIDE)


def test_findings_have_all_problems_planners_and_budgets(small: tuple[list[Row], Findings]) -> None:
    evidence = small[1].evidence
    assert len(evidence.claims) == 3
    assert [series.name for series in evidence.figures[0].series] == list(peers.OURS)
    assert [len(table.rows) for table in evidence.tables] == [2 * 2, len(peers.OURS)]
    assert any("mctx is not installed" in note for note in evidence.notes)


def test_a_row_is_the_regret_of_the_decision() -> None:
    found = peers.measure(Cell({"problem": "sailing", "planner": peers.DECIDE, "budget": 300}, 1))
    model, root, q = peers.task("sailing", 1)
    exact = sp.exact.solve(model, sp.HardMax()).q[root]
    assert q == pytest.approx(exact)
    action = sp.decide(model, root, calls=300, seed=1).action
    assert found["regret"] == pytest.approx((exact.max() - exact[action]) / np.ptp(exact))


# Problems


@pytest.mark.parametrize("name", BUILT)
def test_a_state_to_decide_at_has_better_and_worse_actions(name: str) -> None:
    orders = set()
    for seed in range(5):
        model, root, q = peers.task(name, seed)
        assert not model.terminal[root]
        assert np.ptp(q) > 0.0
        orders.add(tuple(model.rewards[0].ravel().tolist() + model.successors[0].ravel().tolist()))
    assert len(orders) > 1


def test_a_job_joins_the_queue_of_the_action() -> None:
    """From 2 and 10 jobs: an arrival joins the first queue, or is lost at the second."""
    model = two_queues(room=10)
    following = [dict(zip(model.successors[32, a], model.probabilities[32, a], strict=True)) for a in range(2)]
    assert following[0] == pytest.approx({43: 0.4, 21: 0.4, 31: 0.2})
    assert following[1] == pytest.approx({32: 0.4, 21: 0.4, 31: 0.2})
    assert model.rewards[32, :, 0].tolist() == pytest.approx([-12.0, -12.0 - 0.4 * 20.0])


def test_the_race_is_won_in_as_few_steps_as_the_map_allows() -> None:
    """At most 1 + 2 + 3 + ... rows and columns are passed in a number of steps; the finish is six columns away."""
    model, q, start = peers.problem("race track")
    steps = math.log(1.0 + 0.05 * q[start].max()) / math.log(0.95)
    assert 4.0 < steps < 8.0
    assert model.terminal.sum() == 1
    assert (q[~model.terminal] <= -1.0 + 1e-9).all()
    assert race_track().states == model.states


# Rivals


def test_episodes_and_their_length_fit_the_calls() -> None:
    for calls in (1, 10, 1_000, 100_000):
        episodes, length = lengths(calls, 0.95)
        assert episodes * length <= calls
        assert length >= math.log(episodes) / (2.0 * math.log(1.0 / 0.95))


def test_kl_bounds_have_the_evidence_that_is_asked_for() -> None:
    means, counts = np.array([0.0, 0.3, 0.9, 1.0]), np.array([5.0, 7.0, 100.0, 3.0])
    upper = kl_bounds(means, counts, 2.0)
    assert upper[0] == pytest.approx(1.0 - math.exp(-2.0 / 5.0), abs=1e-5)
    assert upper[3] == 1.0
    p, q = means[1:3], upper[1:3]
    assert counts[1:3] * (p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))) == pytest.approx(
        [2.0, 2.0], rel=1e-3
    )


Rival = Callable[[sp.TabularModel, int], int]


def deterministic() -> sp.TabularModel:
    """A reward of 0.4 at once and nothing else, or 1 at every later step: what is greedy is wrong."""
    successors = [[[1], [2], [1]], [[1]] * 3, [[2]] * 3]
    return sp.TabularModel(np.ones((3, 3, 1)), successors, [[0.4, 0.0, 0.2], [0.0] * 3, [1.0] * 3], discount=0.8)


def test_an_open_loop_finds_the_best_action_with_hundreds_of_episodes() -> None:
    """With fewer its bounds are too wide, and it plays what pays at once."""
    assert [kl_olop(deterministic(), 0, calls, np.random.default_rng(0)) for calls in (500, 10_000)] == [0, 1]


@pytest.mark.skipif(not HAS_MCTX, reason="mctx is not installed")
@pytest.mark.parametrize("trees", [1, 4])
def test_a_search_of_mctx_finds_the_best_action(trees: int) -> None:
    assert all(gumbel(deterministic(), 0, 200, trees, seed) == 1 for seed in range(3))


# Claims


def planted(regret: Callable[[str, str, int], float]) -> list[bool]:
    """Verdicts on planners with regrets by problem, planner and budget: for both budgets, and on every problem."""
    rows = []
    for cell in peers.cells(peers.Settings(pairs=4, budgets=(200, 400), problems=("river swim", "two queues"))):
        s = cell.settings
        noise = 0.01 * math.sin(cell.seed * len(s["planner"]))
        rows.append(Row(s, cell.seed, {"regret": regret(s["problem"], s["planner"], s["budget"]) + noise}, 0.1))
    return [claim.holds for claim in peers.evidence(TINY, rows).claims]


def test_claims_hold_or_fail_as_they_should() -> None:
    assert planted(lambda *_: 0.1) == [True, True, True]
    assert planted(lambda _, who, __: 0.1 if who == peers.DECIDE else 0.2) == [True, True, True]
    assert planted(lambda _, who, __: 0.1 if who == "MDPGapE" else 0.2) == [False, False, False]
    assert planted(lambda _, who, calls: 0.1 if who == "UCT" and calls == 200 else 0.2) == [False, True, True]

    def ahead_on_one(name: str, who: str, calls: int) -> float:
        """Different rivals are ahead of `decide` on one problem and behind on the other."""
        return {"UCT": 0.1, "MDPGapE": 0.5}.get(who, 0.2) if name == "river swim" else 0.5 - 0.3 * (who == peers.DECIDE)

    assert planted(ahead_on_one) == [True, True, False]
