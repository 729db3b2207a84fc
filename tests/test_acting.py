"""Playing real environments: budgets, ends, signals, and that planning pays."""

import json
import signal
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

import smoothplan as sp
from smoothplan.agent import FIRST
from smoothplan.defaults import entropy_backup
from smoothplan.models import from_gymnasium
from smoothplan.models.gymnasium import Player
from smoothplan.references import CriticReference, GridReference

# --- Episodes ---------------------------------------------------------------------------------------------------------


def test_episodes_are_reproducible_and_differ() -> None:
    def played(**options: Any) -> list[Any]:
        result = sp.act("FrozenLake-v1", calls=1_000, episodes=3, **options)
        assert 0 < result.reference_calls <= FIRST * 1_000  # what it learns on the way belongs to episodes
        assert result.calls == result.reference_calls + sum(episode.calls for episode in result.episodes)
        assert all(0 < episode.calls <= 1_000 * episode.steps for episode in result.episodes)
        return [(episode.score, episode.steps, episode.deviations, episode.calls) for episode in result.episodes]

    assert played(seed=1) == played(seed=1) != played(seed=2)
    assert len({steps for _, steps, _, _ in played(seed=1)}) > 1


def test_what_is_reported_adds_up() -> None:
    result = sp.act("FrozenLake-v1", is_slippery=False, calls=1_000, episodes=3, discount=0.9)
    assert result.scores.tolist() == [1.0] * 3
    assert (result.mean, result.error) == (1.0, 0.0)
    for episode in result.episodes:
        assert (episode.steps, episode.end) == (6, "terminated")
        assert episode.discounted == pytest.approx(0.9**5)
    assert result.calls == result.reference_calls + sum(episode.calls for episode in result.episodes)
    assert 0 < result.reference_calls <= FIRST * 1_000
    fields = json.loads(result.to_json())
    assert (fields["mean"], fields["calls"], len(fields["episodes"])) == (1.0, result.calls, 3)
    assert sp.act("FrozenLake-v1", calls=0).error is None


def test_the_environments_time_limit_and_ours_end_an_episode() -> None:
    left = CriticReference(lambda states: np.tile([1.0, 0.0, 0.0, 0.0], (len(states), 1)))
    (episode,) = sp.act("FrozenLake-v1", is_slippery=False, reference=left, calls=0).episodes
    assert (episode.steps, episode.end, episode.score) == (100, "truncated", 0.0)
    (episode,) = sp.act("FrozenLake-v1", is_slippery=False, reference=left, calls=0, max_steps=7).episodes
    assert (episode.steps, episode.end) == (7, "max_steps")


def test_an_environment_that_is_given_is_played_itself() -> None:
    mine = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CliffWalking-v1"))
    result = sp.act(mine, calls=500)
    assert result.environment == "CliffWalking-v1"
    assert list(mine.return_queue) == [result.mean] == [-13.0]


class Walk(gymnasium.Env[Any, Any]):
    """A noisy walk in single precision, whose actions are −1, 0 and 1. It pays to go to the right."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
    action_space = gymnasium.spaces.Discrete(3, start=-1)
    state: Any

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = np.zeros(1, dtype=np.float32)
        return self.state, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        noise = 0.1 * self.np_random.standard_normal(1)
        self.state = np.clip(self.state + action + noise, -5, 5).astype(np.float32)
        return self.state, float(self.state[0] > 0), False, False, {}


def test_an_environment_of_ones_own_is_played_around_a_critic() -> None:
    """The critic would go to the left; chains of a few steps see that the reward is on the right."""
    left = CriticReference(lambda states: np.tile([0.01, 0.0, 0.0], (len(states), 1)))
    settings: dict[str, Any] = {"reference": left, "reward_range": (0, 1), "discount": 0.6, "max_steps": 10}
    assert sp.act(Walk(), calls=0, **settings).mean <= 1.0
    planned = sp.act(Walk(), calls=1_000, **settings)
    assert planned.mean >= 8.0
    assert planned.episodes[0].deviations >= 3
    assert planned.reference_calls == 0


def test_an_interrupt_ends_the_episode_and_keeps_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    moves = 0
    real = Player.move

    def move(self: Player, action: int) -> Any:
        nonlocal moves
        moves += 1
        if moves > 8:
            raise KeyboardInterrupt
        return real(self, action)

    monkeypatch.setattr(Player, "move", move)
    result = sp.act("FrozenLake-v1", is_slippery=False, calls=1_000, episodes=5)
    assert [(episode.steps, episode.end) for episode in result.episodes] == [(6, "terminated"), (2, "interrupted")]


PLAYING = """
import signal
import sys
import time
import smoothplan as sp
from smoothplan import acting
from smoothplan.references import default

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores interrupts
if sys.argv[1] == "preparing":
    made = default.default_reference

    def slowly(model, backup, oracle, **options):
        made(model, backup, oracle=oracle, **options)
        print("running", flush=True)
        while True:
            oracle.sample([0], [0])
            time.sleep(0.01)

    default.default_reference = slowly
else:
    class Shown(acting.Count):
        def over(self):
            super().over()
            print("running", flush=True)

    acting.Count = Shown
result = sp.act("FrozenLake-v1", map_name="8x8", calls=1_000, episodes=10_000, progress=True)
print(result.to_json())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("stage", ["preparing", "playing"])
def test_a_signal_returns_the_episodes_so_far(stage: str, number: signal.Signals) -> None:
    command = [sys.executable, "-c", PLAYING, stage]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "running\n"
            process.send_signal(number)
            *_, last = process.communicate(timeout=60)[0].splitlines()
        finally:
            process.kill()
    result = json.loads(last)
    assert (process.returncode, result["end"]) == (0, "interrupted")
    ends = [episode["end"] for episode in result["episodes"]]
    assert result["calls"] == result["reference_calls"] + sum(episode["calls"] for episode in result["episodes"])
    if stage == "preparing":
        assert (ends, result["mean"]) == ([], None)
        assert result["calls"] >= 2_000
    else:
        assert len(ends) >= 1
        assert "interrupted" not in ends[:-1]


def test_progress_is_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    sp.act("CliffWalking-v1", calls=500, progress=True)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"calls": 5, "seconds": 1.0}, "calls and seconds cannot both be given"),
        ({"calls": -1}, "calls must be"),
        ({"seconds": 0.0}, "seconds must be"),
        ({"episodes": 0}, "episodes must be"),
        ({"max_steps": 0}, "max_steps must be"),
        ({"reference_calls": 0}, "reference_calls must be"),
        ({"seed": -1}, "seed must be"),
        ({"discount": 1.0}, "discount must be"),
        ({"map_name": "9x9"}, "gymnasium cannot make"),
    ],
)
def test_misuse_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sp.act("FrozenLake-v1", **options)


# --- It pays ----------------------------------------------------------------------------------------------------------


def test_a_taxi_finds_its_way_from_everywhere() -> None:
    """The first reference knows a fifth of the states; every episode starts elsewhere."""
    planned = sp.act("Taxi-v4", episodes=10)
    assert all(episode.end == "terminated" and episode.score > 0 for episode in planned.episodes)
    alone = sp.act("Taxi-v4", episodes=10, calls=0)
    assert alone.mean < 0.0


@pytest.mark.full
def test_a_pole_is_balanced_around_a_coarse_reference() -> None:
    model = from_gymnasium("CartPole-v1")
    reference = GridReference.build(model, entropy_backup(model), cells=4)
    alone = sp.act("CartPole-v1", reference=reference, episodes=3, calls=0)
    planned = sp.act("CartPole-v1", reference=reference, max_steps=400)
    assert alone.mean < 350
    assert planned.mean == 400
    assert planned.episodes[0].deviations > 0
