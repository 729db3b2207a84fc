"""Agents: an own loop, exact calls, a reference that learns, episodes, and their animations."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import smoothplan as sp
from smoothplan.chains.least_squares import LeastSquaresReference
from smoothplan.decide.agent import Simulated, recording
from smoothplan.models.gymnasium import Player
from tests.common import Counter, vectorised
from tests.decide.simulators import JITTED, MODELS, TABLE, counted, critic, line, plane

LIMIT, FIRST_CALLS = 300, 2_000


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C interrupts, even in a job in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("name", ["table", "floats", "whole numbers", "scalar"])
def test_an_own_loop_counts_every_call_and_keeps_to_its_limits(name: str) -> None:
    model, counter = counted(name)
    agent, state = sp.Agent(model, calls=LIMIT, reference_calls=FIRST_CALLS, seed=3), model.initial_state
    world = Simulated(MODELS[name]())  # whose calls are not the agent's
    world.reset(1)
    for step in range(1, 6):
        before = agent.calls
        action = agent.act(state)
        assert action in range(model.actions)
        if step == 1:
            reference = agent.reference
            assert before == 0 < agent.reference_calls <= FIRST_CALLS
            before = agent.reference_calls
            known = getattr(reference, "calls", 0)
        assert agent.calls == counter.calls
        assert 0 < agent.calls - before <= LIMIT
        world.move(action)
        state = world.state
    assert agent.reference is reference
    assert (agent.steps, agent.decision is not None) == (5, True)
    # A table learns on the way; a least-squares fit would forget.
    learnt = getattr(reference, "calls", 0) - known
    assert (learnt > 0) == (not isinstance(reference, LeastSquaresReference))
    assert known + learnt < agent.calls


def test_the_usual_limits_know_what_a_call_costs() -> None:
    for model, usual in ((plane(), 20_000), (line(), 4_000)):
        agent = sp.Agent(model)
        assert (agent._limit, agent._first) == (usual, 25 * usual)


# The reference


def test_no_calls_take_the_references_best_action() -> None:
    table = np.random.default_rng(0).random((TABLE.states, TABLE.actions))
    agent = sp.Agent(TABLE, calls=0, reference=sp.TabularReference(table))
    assert [agent.act(state) for state in range(8)] == table[:8].argmax(axis=1).tolist()
    assert (agent.calls, agent.deviations, agent.steps) == (0, 0, 8)
    made = sp.Agent(TABLE, calls=0, reference_calls=500)
    made.act(0)
    assert made.calls == made.reference_calls == 500


def test_a_wrong_reference_is_overruled() -> None:
    """It prefers the worst action at the root and is right everywhere else."""
    truth = sp.exact.solve(TABLE, sp.HardMax()).q
    table = truth.copy()
    table[0] = -truth[0]
    agent = sp.Agent(TABLE, calls=50_000, reference=sp.TabularReference(table))
    assert agent.act(0) == truth[0].argmax() != table[0].argmax()
    assert agent.deviations == 1


def test_a_reference_that_is_given_learns_and_its_calls_count() -> None:
    counter = Counter(TABLE)
    model = vectorised(TABLE, counter)
    reference = sp.SharedReference(model, sp.HardMax())
    reference.improve(1_000)
    agent = sp.Agent(model, calls=400, reference=reference)
    for state in (0, 3, 7):
        agent.act(state)
    assert agent.reference is reference
    assert agent.reference_calls == 0
    assert agent.calls == counter.calls - 1_000 <= 1_200
    assert reference.calls == 1_300  # a quarter of the calls of each step


def test_a_critic_does_not_learn_and_leaves_all_calls_to_the_race() -> None:
    model, counter = counted("floats")
    agent = sp.Agent(model, calls=600, reference=critic(0.0, 0.0, 0.0))
    decision = agent.decide(model.initial_state)
    assert decision.calls == agent.calls == counter.calls
    assert 400 < agent.calls <= 600
    assert (agent.decide(model.initial_state).q != decision.q).any()  # by new random numbers


def test_time_limits_a_step() -> None:
    agent = sp.Agent(plane(), seconds=0.05, reference_calls=500)
    for _ in range(3):
        agent.act([0.5, 0.5])
    assert agent.decision is not None
    assert agent.decision.seconds < 5.0
    assert agent.calls > agent.reference_calls


def test_a_saved_agent_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    for name in ("table", "floats", "compiled"):
        model, file = MODELS[name](), tmp_path / f"{name}.npz"
        agent = sp.Agent(model, calls=200, reference_calls=2_000, seed=3)
        agent.act(model.initial_state)
        agent.save(file)
        again = sp.Agent.load(file, MODELS[name](), calls=200)
        assert (again.reference is not None, again.reference_calls, again.calls) == (True, 0, again.calls)
        first, second = (one.decide(model.initial_state) for one in (agent, again))
        assert (first.q == second.q).all()
        assert first.action == second.action


def test_what_cannot_be_saved_or_loaded_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has learnt nothing yet"):
        sp.Agent(TABLE, calls=10).save(tmp_path / "none")
    agent = sp.Agent(plane(), calls=100, reference=critic(0.0, 0.1, 0.0))
    with pytest.raises(ValueError, match="only references that are learnt here can be saved"):
        agent.save(tmp_path / "critic")
    (tmp_path / "text").write_text("no arrays")
    with pytest.raises(ValueError, match=r"path must be a file that Agent.save has written, got .*text"):
        sp.Agent.load(tmp_path / "text", TABLE)
    taught = sp.Agent(TABLE, calls=10, reference_calls=100)
    taught.prepare()
    taught.save(tmp_path / "table")
    with pytest.raises(ValueError, match=r"with 3 actions and discount 0.8, got 3 actions and discount 0.9"):
        sp.Agent.load(tmp_path / "table", sp.models.garnet(states=12, actions=3, branching=3, discount=0.9, seed=3))


# Episodes


@pytest.mark.parametrize(
    "model", [TABLE, plane(), sp.models.frozen_lake(), JITTED], ids=["table", "plane", "lake", "pole"]
)
def test_an_episode_is_what_was_played(model: Any) -> None:
    agent = sp.Agent(model, calls=50, reference_calls=500)
    told: list[tuple[float, int]] = []
    episode = agent.play(max_steps=12, seed=4, on_step=lambda score, steps: told.append((score, steps)))
    assert 0 < episode.steps <= 12
    shape = np.asarray(model.initial_state).shape
    assert episode.states.shape == (episode.steps, *shape)
    assert episode.actions.shape == episode.rewards.shape == (episode.steps,)
    np.testing.assert_array_equal(episode.states[0], model.initial_state)
    assert episode.score == pytest.approx(episode.rewards.sum())
    discounted = sum(model.discount**step * reward for step, reward in enumerate(episode.rewards))
    assert episode.discounted == pytest.approx(discounted)
    assert [steps for _, steps in told] == list(range(1, episode.steps + 1))
    assert told[-1][0] == pytest.approx(episode.score)
    assert episode.end == "max_steps" if episode.steps == 12 else "terminated"
    assert episode.calls == agent.calls
    world = Simulated(model)  # the same seed and actions lead the same way
    world.reset(4)
    for state, action, reward in zip(episode.states, episode.actions, episode.rewards, strict=True):
        np.testing.assert_array_equal(world.state, state)
        assert world.move(int(action))[0] == reward


@pytest.mark.parametrize("after", [30, 110, 400], ids=["in the reference", "in the first race", "later"])
def test_calls_are_exact_where_the_simulator_is_interrupted(after: int) -> None:
    counter = Counter(plane(), interrupted_after=after)
    agent = sp.Agent(plane(counter), calls=100, reference_calls=90)
    episode = agent.play(Simulated(plane()))
    assert episode.end == "interrupted"
    assert agent.calls == counter.calls > after


def test_misuse_is_named() -> None:
    """The other arguments are those of `decide`."""
    with pytest.raises(ValueError, match="calls must be at least 0, got -1"):
        sp.Agent(TABLE, calls=-1)
    with pytest.raises(ValueError, match="reference_calls must be at least 1, got 0"):
        sp.Agent(TABLE, reference_calls=0)
    agent = sp.Agent(sp.models.frozen_lake(), calls=50, reference_calls=100)
    for state, message in ((15, "terminal"), (99, "99")):
        with pytest.raises(ValueError, match=message):
            agent.act(state)
    loose: Any = sp.Agent
    with pytest.raises(TypeError, match="model must be an object, such as VectorModel"):
        loose(sp.VectorModel)


# Episodes of Gymnasium


def test_episodes_are_reproducible_and_differ() -> None:
    def played(**options: Any) -> list[Any]:
        result = sp.act("FrozenLake-v1", calls=100, episodes=3, **options)
        assert 0 < result.reference_calls <= 25 * 100  # learning on the way belongs to episodes
        assert result.calls == result.reference_calls + sum(episode.calls for episode in result.episodes)
        assert all(0 < episode.calls <= 100 * episode.steps for episode in result.episodes)
        return [(episode.score, episode.steps, episode.deviations, episode.calls) for episode in result.episodes]

    first = played(seed=1)
    assert first == played(seed=1) != played(seed=2)
    assert len({steps for _, steps, _, _ in first}) > 1


def test_what_is_reported_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    result = sp.act("FrozenLake-v1", is_slippery=False, calls=1_000, episodes=3, discount=0.9, progress=True)
    assert capsys.readouterr().out == ""
    assert result.scores.tolist() == [1.0] * 3
    assert (result.mean, result.error) == (1.0, 0.0)
    for episode in result.episodes:
        assert (episode.steps, episode.end) == (6, "terminated")
        assert episode.discounted == pytest.approx(0.9**5)
    fields = json.loads(result.to_json())
    assert (fields["mean"], fields["calls"], len(fields["episodes"])) == (1.0, result.calls, 3)
    assert sp.act("FrozenLake-v1", calls=0).error is None


def test_the_environments_time_limit_and_ours_end_an_episode() -> None:
    left = sp.CriticReference(lambda states: np.tile([1.0, 0.0, 0.0, 0.0], (len(states), 1)))
    (episode,) = sp.act("FrozenLake-v1", is_slippery=False, reference=left, calls=0).episodes
    assert (episode.steps, episode.end, episode.score) == (100, "truncated", 0.0)
    (episode,) = sp.act("FrozenLake-v1", is_slippery=False, reference=left, calls=0, max_steps=7).episodes
    assert (episode.steps, episode.end) == (7, "max_steps")


def test_an_environment_that_is_given_is_played_itself() -> None:
    mine = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CliffWalking-v1"))
    result = sp.act(mine, calls=500)
    assert result.environment == "CliffWalking-v1"
    assert list(mine.return_queue) == [result.mean] == [-13.0]


@pytest.mark.parametrize(("stage", "number"), [("prepare", signal.SIGTERM), ("play", signal.SIGINT)])
def test_a_signal_returns_the_episodes_so_far(
    stage: str, number: signal.Signals, monkeypatch: pytest.MonkeyPatch, interruptible: None
) -> None:
    real: Any = getattr(sp.Agent, stage)

    def signalling(agent: sp.Agent, *arguments: Any, **options: Any) -> Any:
        found = real(agent, *arguments, **options)
        monkeypatch.undo()  # a second signal ends everything
        os.kill(os.getpid(), number)
        if stage == "prepare":
            agent._stop_signal.check()
        return found

    monkeypatch.setattr(sp.Agent, stage, signalling)
    result = sp.act("FrozenLake-v1", map_name="8x8", calls=1_000, episodes=10_000)
    ends = [episode.end for episode in result.episodes]
    assert result.end == "interrupted"
    assert result.calls == result.reference_calls + sum(episode.calls for episode in result.episodes) > 0
    assert len(ends) == (0 if stage == "prepare" else 2)
    assert "interrupted" not in ends[:-1]
    assert (json.loads(result.to_json())["mean"] is None) == (stage == "prepare")


def test_misuse_of_act_is_named() -> None:
    wrong: dict[str, Any] = {"episodes must be": {"episodes": 0}, "gymnasium cannot make": {"map_name": "9x9"}}
    for message, options in wrong.items():
        with pytest.raises(ValueError, match=message):
            sp.act("FrozenLake-v1", **options)


def test_a_taxi_finds_its_way_from_everywhere() -> None:
    """The first reference knows a fifth of the states; every episode starts elsewhere."""
    planned = sp.act("Taxi-v4", episodes=10)
    assert all(episode.end == "terminated" and episode.score > 0 for episode in planned.episodes)
    alone = sp.act("Taxi-v4", episodes=10, calls=0)
    assert alone.mean < 0.0


# Animations

Pictures = list[np.ndarray[Any, Any]]


@pytest.fixture(autouse=True)
def _no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setenv("SDL_AUDIODRIVER", "dummy")


def read(path: Path) -> tuple[Pictures, float]:
    """The pictures of an animation, and their number per second."""
    import imageio_ffmpeg

    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    found = subprocess.run(command, capture_output=True, check=True)
    size = re.search(rb"Video: (?:h264|gif).* (\d+)x(\d+).* (\d+) fps", found.stderr)
    assert size is not None
    width, height, speed = map(int, size.groups())
    return list(np.frombuffer(found.stdout, np.uint8).reshape(-1, height, width, 3)), speed


def expected(actions: list[int]) -> Pictures:
    real = gymnasium.make("FrozenLake-v1", is_slippery=False, render_mode="rgb_array")
    real.reset(seed=0)
    return [np.asarray(real.render()), *(np.asarray((real.step(action), real.render())[1]) for action in actions)]


@pytest.mark.parametrize(("suffix", "error"), [(".gif", None), (".mp4", None), (".mp4", KeyboardInterrupt)])
def test_the_file_has_every_picture_of_the_first_episode(
    suffix: str, error: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of one that an interrupt has ended."""
    taken: list[int] = []
    real = Player.move

    def move(self: Player, action: int) -> Any:
        if len(taken) == 3 and error is not None:
            raise error("the lights went out")
        taken.append(action)
        return real(self, action)

    monkeypatch.setattr(Player, "move", move)
    path = tmp_path / f"lake{suffix}"
    result = sp.act("FrozenLake-v1", is_slippery=False, calls=300, episodes=2, record=path)
    ends = [(6, "terminated")] * 2 if error is None else [(3, "interrupted")]
    assert [(episode.steps, episode.end) for episode in result.episodes] == ends
    pictures, speed = read(path)
    assert len(pictures) == (7 if error is None else 4)
    assert speed == pytest.approx(4.0)
    for found, real_one in zip(pictures, expected(taken), strict=False):
        assert found.shape == (256, 256, 3)
        # A lossy codec changes colours a little; a figure at another place changes many pixels a lot.
        assert np.abs(found.astype(int) - real_one).mean() < 2.0
    assert np.abs(pictures[0].astype(int) - expected(taken)[1]).mean() > 2.0


def test_pictures_of_odd_size_become_even_and_a_failure_is_told(tmp_path: Path) -> None:
    path = tmp_path / "odd.mp4"
    with recording(path) as add:
        for shade in (40, 200):
            add(np.full((31, 45, 3), shade, dtype=np.uint8), 10.0)
    pictures, speed = read(path)
    assert [picture.shape for picture in pictures] == [(32, 46, 3)] * 2
    assert [picture.mean() for picture in pictures] == pytest.approx([40, 200], abs=5)
    assert speed == 10.0
    path.unlink()

    def failing() -> None:
        with recording(path) as add:
            path.mkdir()
            for _ in range(100):  # more than a pipe holds, so that writing fails, too
                add(np.zeros((310, 450, 3), dtype=np.uint8), 10.0)

    with pytest.raises(OSError, match="record: FFmpeg did not write"):
        failing()


@pytest.mark.parametrize(
    ("file", "missing", "error", "message"),
    [
        ("lake.avi", None, ValueError, "record must be a file that ends in .gif or .mp4, got"),
        ("lake.gif", "imageio_ffmpeg", ImportError, r'record needs FFmpeg: pip install "smoothplan\[gym\]"'),
        ("nowhere/lake.gif", None, ValueError, "record must be a file in a folder that can be written, got"),
        ("lake.gif", "pygame", ValueError, "record needs pictures of FrozenLake-v1, and it cannot draw them: pygame"),
    ],
)
def test_what_is_missing_is_said_before_the_work(
    file: str, missing: str | None, error: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing is not None:
        monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setattr(Player, "move", lambda *_: pytest.fail("played"))
    with pytest.raises(error, match=message):
        sp.act("FrozenLake-v1", record=tmp_path / file)
    assert not list(tmp_path.iterdir())


def test_an_environment_that_does_not_draw_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="make it with render_mode='rgb_array', got None"):
        sp.act(gymnasium.make("CartPole-v1"), record=tmp_path / "pole.gif")


def test_workers_change_nothing() -> None:
    decisions = []
    for workers in (1, 2):
        with sp.Agent(TABLE, calls=2_000, reference_calls=500, workers=workers) as agent:
            decisions.append(agent.decide(0))
    assert decisions[0].q.tolist() == decisions[1].q.tolist()
    assert decisions[0].calls == decisions[1].calls > 0
