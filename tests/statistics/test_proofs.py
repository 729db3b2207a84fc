"""The proofs: their pages are complete, and what has no test elsewhere is tried here."""

import itertools
import math
import pkgutil
import re
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.stats import binom

import smoothplan as sp
from docs.statements import HEADING, MENTION, linked
from smoothplan.base.arguments import Floats, Ints
from smoothplan.confidence import ConfidenceSequence, bernstein_count, bernstein_radius
from smoothplan.models.model import States
from smoothplan.recursive import level as arithmetic
from smoothplan.recursive import schedule as recursive
from smoothplan.recursive.batched import BatchedEngine
from smoothplan.recursive.debias import DEBIASING, Debiased
from smoothplan.recursive.level import Level
from smoothplan.recursive.optimise import optimised
from smoothplan.recursive.schedule import Schedule, shared_reference
from smoothplan.run.chunks import Chunk, Outcome, Sums, Work
from smoothplan.run.progress import Display
from smoothplan.run.records import Root, Snapshot
from smoothplan.run.workers import Workers
from smoothplan.theory.backups import LogSumExp
from smoothplan.theory.curvature import Problem
from tests.common import identified
from tests.naive import Exact
from tests.recursive.common import entropy_problem
from tests.recursive.test_level import SMALL, holds, lottery

ROOT = Path(__file__).parents[2]
PROOFS = ROOT / "docs" / "proofs"
CHAPTERS = ["backups", "levels", "debiased", "root", "bounds", "references", "prices", "episodes"]

NAME = re.compile(r"`([^`]+)`")


# The pages


class Statement(NamedTuple):
    number: str
    text: str


@cache
def statements(chapter: str) -> list[Statement]:
    text = (PROOFS / f"{chapter}.md").read_text(encoding="utf-8")
    starts = list(HEADING.finditer(text))
    # A statement ends where the next heading of any kind begins.
    ends = [re.compile(r"^##", re.MULTILINE).search(text, start.end()) for start in starts]
    return [
        Statement(start[2], text[start.start() : end.start() if end else len(text)])
        for start, end in zip(starts, ends, strict=True)
    ]


def named(statement: Statement) -> tuple[list[str], list[str]]:
    """The functions and the tests of a statement."""
    lines = re.findall(r"^Code: (.*)\. Test: (.*)\.$", statement.text, re.MULTILINE)
    assert len(lines) == 1, f"{statement.number} must have one line `Code: ... Test: ...`, got {len(lines)}"
    functions, tests = (NAME.findall(part) for part in lines[0])
    return functions, tests


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_statement_is_proved_and_names_its_code_and_its_tests(chapter: str) -> None:
    number = CHAPTERS.index(chapter) + 1
    found = statements(chapter)
    assert [statement.number for statement in found] == [f"{number}.{i}" for i in range(1, len(found) + 1)]
    for statement in found:
        proof = statement.text.partition("**Proof.**")[2]
        assert "∎" in proof, f"{statement.number} has no proof that ends"
        functions, tests = named(statement)
        assert functions
        assert tests
        for function in functions:
            assert exists(function), f"{statement.number}: there is no {function}"
        for test in tests:
            file, _, name = test.partition("::")
            assert f"\ndef {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{statement.number}: no {test}"


def exists(name: str) -> bool:
    """Whether a dotted name is a function, a class, a method or a constant of a module."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def mentions(text: str) -> Iterator[str]:
    for found in MENTION.finditer(text):
        yield from re.findall(r"\d+\.\d+", found[0])


def test_mentions_of_statements_are_right() -> None:
    known = {statement.number for chapter in CHAPTERS for statement in statements(chapter)}
    pages = [*PROOFS.glob("*.md"), *(ROOT / name for name in ("README.md", "docs/guide.md", "docs/theory.md"))]
    wrong = [(page.name, it) for page in pages for it in mentions(page.read_text(encoding="utf-8")) if it not in known]
    assert not wrong


def test_a_wrong_name_would_be_found() -> None:
    assert exists("smoothplan.recursive.level.certify")
    assert exists("smoothplan.confidence.means.ConfidenceSequence.update")
    assert not exists("smoothplan.recursive.level.certified")
    assert not exists("smoothplan.nowhere.certify")
    assert list(mentions("by Lemmas 1.2 and 3.4, Theorem\n5.6.")) == ["1.2", "3.4", "5.6"]


def test_mentions_become_links() -> None:
    text = "### Lemma 1.1. Here\nSee Lemmas 1.2 to 1.4, `Lemma 1.1` and [Theorem 7.4](prices.md); but Theorem\n1.7."
    places = ("lemma-12-the-closed-form-of-the-transport-backup", "lemma-14-moments-of-a-variable-of-given-range")
    first, second = (f"backups.md#{place}" for place in places)
    wanted = text.replace("1.2", f"[1.2]({first})").replace("1.4", f"[1.4]({second})")
    wanted = wanted.replace("Theorem\n1.7", "[Theorem\n1.7](backups.md#theorem-17-taylors-remainders)")
    assert linked(text, "proofs") == wanted
    assert linked("Theorem 1.7", ".") == "[Theorem 1.7](proofs/backups.md#theorem-17-taylors-remainders)"


# Chapter 4


@pytest.mark.parametrize("chance", [0.02, 0.5, 0.9])
def test_the_confidence_sequence_is_a_supermartingale_and_its_level(chance: float) -> None:
    """By all sequences of eight coins in batches of two: the mean of both capitals, and the ends that they give."""
    delta, size = 0.5, 2
    capitals = np.zeros(2)
    for coins in itertools.product((0.0, 1.0), repeat=8):
        probability = math.prod(chance if coin else 1.0 - chance for coin in coins)
        sequence = ConfidenceSequence(-1.0, 1.0, delta, 0.3)  # of 2X − 1, so that the width is 2
        known = [-1.0, 1.0]
        tilts = tilted = penalty = 0.0
        for start in range(0, 8, size):
            batch = 2.0 * np.array(coins[start : start + size]) - 1.0
            # What is fixed before the batch.
            centre, spread = sequence.mean, sequence.variance
            tilt = 0.3 * 2.0 / (spread + 0.3 * 2.0)
            sequence.update(size, batch.sum(), float(batch @ batch))
            tilts, tilted = tilts + size * tilt, tilted + tilt * float(batch.sum())
            penalty += (-math.log1p(-tilt) - tilt) * float(((batch - centre) ** 2).sum()) / 4.0
            radius = 2.0 * (math.log(2.0 / delta) + penalty) / tilts
            known = [max(known[0], tilted / tilts - radius), min(known[1], tilted / tilts + radius)]
            assert sequence.interval == pytest.approx(known, abs=1e-9)
        drift = (tilted - tilts * (2.0 * chance - 1.0)) / 2.0
        capitals += probability * np.exp([drift - penalty, -drift - penalty])
    assert (capitals <= 1.0).all()
    assert capitals.max() > 0.5


@pytest.mark.parametrize("name", ["bernoulli", "ends", "transport", "lottery"])
@pytest.mark.parametrize("samples", [4, 100, 10_000])
def test_samples_around_a_good_reference_have_their_certificate(name: str, samples: int) -> None:
    """By enumeration, at the corners of what a good reference may be. Some are near the bounds. In a lottery, whose
    values are declared, they are further apart than any action values.
    """
    model, backup = (lottery(ends=True), LogSumExp(0.3)) if name == "lottery" else SMALL[name](0)
    setting, delta = Problem.of(model, backup), 0.1
    solution = sp.exact.solve(model, backup, tolerance=1e-10)
    q, value = solution.q[0], float(solution.values[0])
    children = (Level("constant"), Level("plug-in", samples=1, reference=0))
    through, linear = (arithmetic.one_step(setting, proved) for proved in arithmetic.certify(setting, children))
    good = shared_reference(setting, through, samples, delta)
    shift = float(arithmetic.first_order(setting, good, linear).shift)
    first = Level("order-1", samples=samples, reference=0, linear=1, shift=shift)
    second = Level("order-2", samples=samples, reference=0, linear=0, quadratic=0, pairs=2)
    ratios = []
    for root in (first, second):
        schedule = Schedule(setting, (*children, root), 1, 1.0, delta)
        exact = Exact(setting, schedule.levels, backup, model)
        for signs in itertools.product((-1.0, 1.0), repeat=2):
            reference = np.clip(q + good.bias * np.array(signs), through.low, through.high)
            found = exact.around(2, 0, reference.tolist())
            holds(schedule.sample, found, value)
            low, high = schedule.sample_support(reference, float(backup.value(reference[None], np.array([0]))[0]))
            assert low - 1e-9 <= found.values[0] <= found.values[-1] <= high + 1e-9
            ratios.append(abs(found.mean - value) / float(schedule.sample.bias))
    assert max(ratios) > 0.3 or name == "lottery"


Look = tuple[Chunk[Sums], Sums, Snapshot]


def looked_at(schedule: Schedule, backup: LogSumExp, model: sp.TabularModel, limit: int | None = None) -> list[Look]:
    """A run of a schedule: every chunk that is booked, with what is found after it; after the end, for the last one."""
    root = Root(model, 0, seed=3, max_calls=limit, max_seconds=None, engine="batched", started=0.0)
    run = recursive.ScheduleRun(schedule, backup, root, BatchedEngine(schedule, backup), schedule.epsilon)
    looks: list[Look] = []

    class Watched(Workers):
        def in_order(
            self, work: Work, chunks: Iterable[Chunk[Any]]
        ) -> Generator[tuple[Chunk[Any], Outcome[Any]], None, None]:
            for chunk, outcome in super().in_order(work, chunks):
                try:
                    yield chunk, outcome
                finally:  # where a run stops early it asks for no more
                    looks.append((chunk, outcome.sums, run.result()))

    with Watched() as workers:
        run.run(workers, Display())
    looks[-1] = (*looks[-1][:2], run.result())
    return looks


@pytest.mark.parametrize("limit", [None, 900, 8_000])
@pytest.mark.parametrize("best", [False, True])
@pytest.mark.parametrize("order", [0, 1])
def test_a_run_proves_what_the_theorem_says(order: int, best: bool, limit: int | None) -> None:
    """Every interval of a run from the sums of its chunks, by Theorem 4.6 written down once more: its shares, its
    biases, and the bound of Lemma 4.1 at the very end only. Where all rewards are the best ones, and a level is shifted
    further up, estimates leave the interval, and the value does not.
    """
    chances = np.full((3, 2), 1.0) if best else np.array([[0.5, 0.4], [0.9, 0.1], [0.2, 0.3]])
    successors = np.broadcast_to([1, 2], (3, 2, 2)).copy()
    model = sp.TabularModel(np.full((3, 2, 2), 0.5), successors, chances, discount=0.2, reward_kind="bernoulli")
    backup, delta, epsilon = LogSumExp(1.0), 0.1, 0.05
    found = optimised(Problem.of(model, backup), epsilon, delta, order)
    levels = (Level("constant", shift=3.0 if best else 0.0, rewards=found.levels[0].rewards), *found.levels[1:])
    schedule = replace(found, levels=levels, early_stopping=False)
    assert schedule.root.kind == ("plug-in" if order == 0 else "order-1")
    through, sample = schedule.action_return, schedule.sample
    (low, high), bias = schedule.problem.values, float(through.bias)
    q_low, q_high = (np.full(2, end) for end in schedule.problem.action_values)
    support, share = (float(through.low), float(through.high)), 0.65 if order == 0 else 0.05
    target = max(epsilon - schedule.bias, 1e-12)
    tuned = target if order == 0 else math.sqrt(through.variance / schedule.root.samples)
    actions = [ConfidenceSequence(*support, share * delta / 2, tuned) for _ in range(2)]
    means, outside = None, 0

    def by_actions(least: Floats, most: Floats) -> None:
        nonlocal low, high, q_low, q_high
        q_low, q_high = np.maximum(q_low, least - bias), np.minimum(q_high, most + bias)
        low = max(low, float(backup.value(least - bias)))
        high = min(high, float(backup.value(most + bias)))

    looks = looked_at(schedule, backup, model, limit)
    for place, (chunk, sums, result) in enumerate(looks):
        if chunk.draw.__name__ == "returns":
            actions[chunk.action].update(*sums.moments)
            if chunk.action == 1:
                by_actions(*np.array([each.interval for each in actions]).T)
        else:
            if means is None:
                reference = np.array([each.mean for each in actions])
                ends = schedule.sample_support(reference, float(backup.value(reference)))
                means = ConfidenceSequence(*ends, 0.65 * delta, target)
            means.update(*sums.moments)
            low, high = max(low, means.interval[0] - sample.bias), min(high, means.interval[1] + sample.bias)
        q = np.array([each.mean for each in actions])
        if limit is None and place == len(looks) - 1:
            if order == 0:
                noise = bernstein_radius(through.variance, through.width, schedule.root.samples, 0.25 * delta / 2)
                by_actions(q - noise, q + noise)
            else:
                assert means is not None
                noise = bernstein_radius(sample.variance, sample.high - sample.low, schedule.repeats, 0.25 * delta)
                low, high = max(low, means.mean - noise - sample.bias), min(high, means.mean + noise + sample.bias)
        assert result.interval == pytest.approx((low, high), rel=1e-12)
        assert result.q_intervals == pytest.approx(np.stack([q_low, q_high], axis=1), rel=1e-12)
        if actions[1].count > 0:
            estimate = float(backup.value(q)) if means is None else means.mean
            outside += not low <= estimate <= high
            assert result.value == pytest.approx(min(max(estimate, low), high), rel=1e-12)
    count = sum(each.count for each in actions) + (0 if means is None else means.count)
    assert (count == 2 * schedule.root.samples + (0 if order == 0 else schedule.repeats)) == (limit is None)
    assert (outside > 0) >= best


@pytest.mark.parametrize("order", [0, 1])
def test_a_run_stops_no_earlier_than_its_value_is_within_epsilon(order: int) -> None:
    """Where all rewards are the best ones, the value is at the upper end: half of the width is not enough."""
    one, successors = np.ones((1, 2)), np.zeros((1, 2, 1), dtype=int)
    model = sp.TabularModel(one[..., None], successors, one, discount=0.2, reward_kind="bernoulli")
    backup, epsilon = LogSumExp(1.0), 0.05
    schedule = optimised(Problem.of(model, backup), epsilon, 0.1, order)
    *before, last = [found for _, _, found in looked_at(schedule, backup, model)]
    errors = [max(found.interval[1] - found.value, found.value - found.interval[0]) for found in (*before, last)]
    assert all(error > epsilon for error in errors[:-1])
    assert errors[-1] <= epsilon * (1.0 + 1e-9)
    assert len(before) > 10


# Chapter 7


@pytest.mark.parametrize("debias", [0, 1, 2])
def test_what_searched_levels_pay_for(debias: int) -> None:
    """What the certificates of Theorem 7.5 ask for, with its constants, in schedules that a search has found."""
    setting = entropy_problem(0.5)
    schedule = optimised(setting, 1e-7, 0.1, 1, debias)
    second, third, fourth, _, sixth = setting.derivatives
    reward_width = setting.reward_range[1] - setting.reward_range[0]
    least = setting.discount**2 * min(setting.width, reward_width) ** 2 / 4.0
    of_order_1, averaging = 0, 0
    for row, level in enumerate(schedule.levels[:-1]):
        if level.kind == "constant" or level.reference is None:
            continue
        bias, coarse = (float(schedule.certificates[place].bias) for place in (row, level.reference))
        variance = float(schedule.returns[level.reference].variance) / level.samples
        noise = 2.0 * (setting.actions - 1) * variance
        if schedule.levels[level.reference].kind != "constant":
            assert variance * level.samples >= least
            averaging += schedule.levels[level.reference].rewards > 1
        assert schedule.costs[row] >= setting.actions * level.samples * (1 + schedule.costs[level.reference])
        remains = min(setting.actions**-0.5 * (setting.actions - 1) * math.sqrt(variance), second / 2.0 * noise) / 2.0
        if level.debias > 0:
            # R₄ and R₆ for two actions, of which the whole block, and there m₂² and m₄m₂, are a part.
            kind: Debiased = "order-1" if level.kind == "order-1" else "plug-in"
            slope = 1.0 if kind == "order-1" else 0.0
            whole = [abs(DEBIASING[kind, level.debias].values[0] - degree * slope) for degree in (4, 6)]
            kurtosis = 3.0 * (level.samples - 1) * variance**2 / level.samples
            remains = min(
                fourth / 24.0 * whole[0] * 6.0 * variance**2, sixth / 720.0 * whole[1] * 30.0 * kurtosis * variance
            )
        if level.kind == "plug-in":
            assert bias * (1.0 + 1e-9) >= setting.discount * coarse + remains
            continue
        of_order_1 += 1
        assert level.linear is not None
        through, linear = (setting.discount * it for it in (coarse, float(schedule.certificates[level.linear].bias)))
        rest = (bias - linear) * (1.0 + 1e-9) - min(through, second * through**2)
        if level.debias > 0:
            assert rest >= third * noise * (through + linear) + remains
        else:
            assert rest >= 0.0
            assert bias - linear >= min(math.sqrt(noise), second / 2.0 * noise) / 2.0
    assert of_order_1 >= 5
    assert averaging >= 5


def words(discount: float, prize: int | None) -> sp.VectorModel:
    """Words of two letters as numbers, 1 for the empty one; beyond a prize every step pays 1."""

    def step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
        following = 2 * states + actions
        if prize is None:
            return following, np.zeros(len(states))
        depth = np.floor(np.log2(following)).astype(np.int64) - (prize.bit_length() - 1)
        return following, ((depth >= 0) & (following >> np.maximum(depth, 0) == prize)).astype(np.float64)

    return sp.VectorModel(
        step, actions=2, discount=discount, reward_range=(0, 1), reward_kind="deterministic", terminates=False,
        initial_state=np.int64(1),
    )  # fmt: skip


def test_a_needle_is_not_found_by_those_who_do_not_look() -> None:
    """Upper end and gap of a planner with m calls are no smaller than Theorem 7.8 says, and valid where a prize is."""
    discount, calls = 0.8, 60
    planner = sp.OTGapE(sp.HardMax(), epsilon=0.01, delta=0.1)
    nothing = sp.plan(planner, words(discount, None), max_calls=calls)
    depth = math.floor(math.log2(calls))  # 2^(h+1) > m: a prize at that depth may be missed
    assert nothing.interval[0] == 0.0
    assert nothing.interval[1] >= discount**depth / (1.0 - discount)
    assert identified(nothing).gap >= discount ** (depth + 1) / (1.0 - discount)  # 2^h > m: one behind either action
    for prize in (4, 7):
        value = discount ** (prize.bit_length() - 2) / (1.0 - discount)
        found = sp.plan(planner, words(discount, prize), max_calls=calls)
        low, high = found.interval
        assert low <= value * (1.0 + 1e-9)
        assert high >= value * (1.0 - 1e-9)
        leads = int(f"{prize:b}"[1])  # the action that the prize is behind
        assert found.action == leads or identified(found).gap >= value * (1.0 - 1e-9)


@pytest.mark.parametrize("temperature", [0.05, 0.3, 2.0])
@pytest.mark.parametrize(("actions", "discount"), [(2, 0.5), (2, 0.99), (5, 0.9)])
def test_a_soft_maximum_does_not_take_the_needle_whole(temperature: float, actions: int, discount: float) -> None:
    """What a prize moves in the model of Theorem 7.7 is within the bound there, and near it at a high temperature."""
    backup = LogSumExp(temperature)
    for depth in (0, 1, 4, 9):
        without = with_prize = 0.0
        for step in range(depth + 1):
            others = np.full(actions - 1, discount * without)
            reward = 1.0 if step == 0 else 0.0
            with_prize = float(backup.value(np.append(others, reward + discount * with_prize)))
            without = float(backup.value(np.full(actions, discount * without)))
        bound = temperature / actions * math.expm1(1.0 / temperature) * (discount / actions) ** depth
        assert 0.0 <= with_prize - without <= bound * (1.0 + 1e-9) + 1e-12
    if temperature > 1.0:
        assert with_prize - without >= 0.8 * bound


def test_no_mean_is_known_from_fewer_samples() -> None:
    """The best test between the coins of Proposition 7.9 needs what it says, and no more than ten times that.

    So does Bernstein's count for fair coins, within a larger constant.
    """
    for epsilon in (0.125, 0.1, 0.01, 1e-4):
        for delta in (0.1, 1e-3, 1e-9):
            least = 3.0 / (128.0 * epsilon**2) * math.log(1.0 / (4.0 * delta))
            ours = float(bernstein_count(0.25, 1.0, epsilon, delta))
            assert least <= ours <= 100.0 * least
            for calls, enough in ((math.ceil(least) - 1, False), (math.ceil(10.0 * least), True)):
                if calls <= 10**6:
                    laws = [binom.pmf(np.arange(calls + 1), calls, 0.5 + sign * 2.0 * epsilon) for sign in (1, -1)]
                    assert (np.minimum(*laws).sum() <= 2.0 * delta) == enough
