"""Real schedulers and workers of Dask: the bits of one worker, clear errors, and nothing left behind."""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import distributed
import numpy as np
import pytest

import smoothplan as sp
from smoothplan.models.base import reproduce
from smoothplan.running import cluster as clusters
from smoothplan.running.workers import ClusterError

from .common import content, ending
from .faults import Cluster, children, contained, free_port, survivors, wait_until

DaskClient: Any = distributed.Client
"""Parts of it have no types."""

LONG = 300.0
SOFT = sp.LogSumExp(0.5)
RARE = 0.001
"""The probability of a draw at which a simulator does something bad."""


pytestmark = pytest.mark.xdist_group("cluster")  # one cluster serves all


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers. Dask gives a task up when its worker dies, so that we send it again."""
    found = Cluster(tmp_path_factory.mktemp("cluster"), workers=2, allowed_failures=0)
    yield found
    found.close()


def simulator(strange: Callable[[np.random.Generator], Any] = lambda rng: None, **declared: Any) -> sp.VectorModel:
    """Drifts, one state at a time; a closure over something that may be strange."""

    def step(state: Any, action: int, rng: np.random.Generator) -> tuple[Any, float, bool]:
        strange(rng)
        moved = state + 0.1 * (2 * action - 1) + 0.01 * rng.standard_normal(state.shape)
        return moved, float(np.exp(-(moved[0] ** 2))), False

    given: dict[str, Any] = {"actions": 2, "discount": 0.5, "reward_range": (0, 1), "terminates": False}
    return sp.VectorModel.from_scalar(step, **given | {"initial_state": [0.0, 1.0]} | declared)


def second_order(epsilon: float = 0.001) -> sp.SecondOrderSmoothCruiser:
    return sp.SecondOrderSmoothCruiser(SOFT, epsilon=epsilon, delta=0.1)


def garnet(**options: Any) -> sp.TabularModel:
    given: dict[str, Any] = {"states": 50, "actions": 2, "branching": 4, "discount": 0.3, "seed": 1}
    return sp.models.garnet(**given | options)


CASES: dict[str, tuple[Any, Any, int]] = {
    "compiled": (second_order(), garnet(), 3_000_000),
    "converged": (second_order(0.2), garnet(reward_kind="bernoulli"), 10_000_000),
    "ending": (second_order(), ending(2, 0.3, 1), 1_000_000),
    "closure": (second_order(), simulator(), 60_000),
    "gap": (sp.OTGapCruiser(SOFT, epsilon=0.001, delta=0.1), simulator(), 60_000),
    "reference": (sp.ReferenceCruiser(SOFT, epsilon=0.001, delta=0.1, improve=True), simulator(), 60_000),
}


SLOW = {"compiled", "converged", "gap"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] if name in SLOW else []) for name in CASES]
)
def test_the_bits_of_one_worker(cluster: Cluster, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    planner, model, calls = CASES[name]
    alone = sp.plan(planner, model, seed=3, max_calls=calls)
    assert alone.samples > 100
    assert (alone.status == "converged") == (name == "converged")
    found = sp.plan(planner, model, seed=3, max_calls=calls, cluster=cluster.address)
    assert content(found) == content(alone)
    assert capfd.readouterr().out == ""


@pytest.mark.full
def test_a_client_is_left_as_it_was(cluster: Cluster) -> None:
    """Its cluster has no task, no future and no process of ours afterwards, and does the next plan."""
    planner, model, calls = CASES["closure"]
    alone = content(sp.plan(planner, model, max_calls=calls))
    with DaskClient(cluster.address, set_as_default=False) as client:
        mine = client.submit(sum, [1, 2, 3])
        for _ in range(2):
            assert content(sp.plan(planner, model, max_calls=calls, cluster=client)) == alone
            assert client.status == "running"
            assert wait_until(lambda: list(client.futures) == [mine.key])
            assert wait_until(lambda: _tasks(client) == [mine.key])
        assert mine.result() == 6
        assert not survivors(cluster.token)
        assert wait_until(lambda: not _threads(client))


def _tasks(client: Any) -> list[Any]:
    found: list[Any] = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks))
    return found


def _threads(client: Any) -> list[str]:
    """Those of this package on the workers."""
    found = client.run(lambda: [thread.name for thread in threading.enumerate()])
    return [name for names in found.values() for name in names if name.startswith("smoothplan")]


@pytest.mark.full
def test_a_cluster_of_our_own_ends_with_the_run(capfd: pytest.CaptureFixture[str]) -> None:
    before = children(os.getpid())
    planner, model, calls = CASES["closure"]
    found = sp.plan(planner, model, max_calls=calls, cluster="local", workers=2)
    assert content(found) == content(sp.plan(planner, model, max_calls=calls))
    assert set(children(os.getpid())) <= set(before)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("smoothplan")]
    assert capfd.readouterr().out == ""


SCRIPT = """
import sys
import numpy as np
import smoothplan as sp

SCALE = 0.1

def move(states, actions):
    return states + SCALE * (2 * actions[:, None] - 1)

def step(states, actions, rng):
    moved = move(states, actions) + 0.01 * rng.standard_normal(states.shape)
    return moved, np.exp(-moved[:, 0] ** 2)

model = sp.VectorModel(step, actions=2, discount=0.5, reward_range=(0, 1), terminates=False, initial_state=[0.0])
planner = sp.SecondOrderSmoothCruiser(sp.LogSumExp(0.5), epsilon=0.01, delta=0.1)
print(sp.plan(planner, model, max_calls=60_000, cluster=sys.argv[1] if sys.argv[1:] else None).to_json())
"""


@pytest.mark.full
def test_a_script_without_a_guard(cluster: Cluster, tmp_path: Path) -> None:
    """What it defines travels with the work, and nobody imports it; only its own line is on standard output."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    found = []
    for where in ([], [cluster.address], ["local"]):
        done = subprocess.run(
            [sys.executable, "-W", "error", str(script), *where],
            capture_output=True,
            text=True,
            check=True,
            timeout=LONG,
        )
        assert done.stderr == ""
        found.append(json.loads(done.stdout) | {"seconds": 0})
    assert found[0] == found[1] == found[2]


def test_the_command_line(cluster: Cluster) -> None:
    words = "plan --model garnet:states=50,actions=2,branching=4,discount=0.3,seed=1 --backup lse:temperature=0.5"
    words += " --planner second-order:epsilon=0.01,delta=0.1 --max-calls 1000000 --json"
    found = []
    for where in ([], ["--cluster", cluster.address]):
        command = [sys.executable, "-m", "smoothplan.cli", *words.split(), *where]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LONG)
        found.append(json.loads(done.stdout) | {"seconds": 0})
    assert found[0] == found[1]


def test_a_large_table_raises_no_warning(cluster: Cluster) -> None:
    model = garnet(states=150_000)
    options: dict[str, Any] = {"max_calls": 100_000}
    found = sp.plan(second_order(), model, cluster=cluster.address, **options)
    assert content(found) == content(sp.plan(second_order(), model, **options))


@pytest.mark.parametrize("where", ["tcp://127.0.0.1:{port}", "127.0.0.1:{port}", "nowhere.invalid:1", "strange://x:1"])
def test_nobody_is_there(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.setattr(clusters, "CONNECT_SECONDS", 0.5)
    address = where.format(port=free_port())
    with pytest.raises(ClusterError, match="no Dask scheduler answers at cluster=") as caught:
        sp.plan(*CASES["compiled"][:2], max_calls=1000, cluster=address)
    assert address in str(caught.value)
    assert caught.value.partial.calls == 0


@pytest.mark.full
def test_nobody_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No workers at all: an error; unless time is up first."""
    empty = Cluster(tmp_path, workers=0)
    try:
        planner, model, calls = CASES["compiled"]
        assert sp.plan(planner, model, max_calls=calls, max_seconds=1.0, cluster=empty.address).status == "max_seconds"
        monkeypatch.setattr(clusters, "CONNECT_SECONDS", 2.0)
        with pytest.raises(ClusterError, match="has no workers: start some with `dask worker`"):
            sp.plan(planner, model, max_calls=calls, cluster=empty.address)
    finally:
        empty.close()


@pytest.mark.parametrize("wrong", [5, object(), ["local"], {"address": "local"}])
def test_wrong_kinds_of_clusters(wrong: Any) -> None:
    with pytest.raises(TypeError, match="cluster must be 'local', the address of a Dask scheduler or a client, got"):
        sp.plan(*CASES["compiled"][:2], max_calls=1000, cluster=wrong)


def test_clients_that_cannot_be_used(cluster: Cluster) -> None:
    client = DaskClient(cluster.address, set_as_default=False)
    client.close()
    with pytest.raises(ClusterError, match="is not connected"):
        sp.plan(*CASES["compiled"][:2], max_calls=1000, cluster=client)


def test_dask_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ImportError, match=r'cluster needs Dask: pip install "smoothplan\[dask\]"'):
        sp.plan(*CASES["compiled"][:2], max_calls=1000, cluster="local")


def test_another_version_on_a_worker_that_joined_later() -> None:
    with pytest.raises(ClusterError, match=r"a worker has smoothplan .*: install version 0\.0\.0 there"):
        clusters.do(clusters.Shipped("", b""), "0.0.0", pickle.dumps(()), False, None, None)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        pytest.param("no-such-package", "no smoothplan: install", marks=pytest.mark.full),
        ("numpy", r"smoothplan \d+\..*: install"),
    ],
)
def test_a_worker_with_something_else_installed(tmp_path: Path, asked: str, message: str) -> None:
    """It answers for another package when it is asked for ours."""
    program = (
        "import importlib.metadata as here; find = here.version; "
        f"here.version = lambda name: find(name if name != 'smoothplan' else {asked!r}); "
        "from distributed.cli.dask_worker import main; main()"
    )
    empty = Cluster(tmp_path, workers=0)
    options = ("--no-nanny", "--no-dashboard", "--local-directory", str(tmp_path))
    command = [sys.executable, "-c", program, empty.address, *options]
    worker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with pytest.raises(ClusterError, match=f"the worker at .* has {message} version"):
            sp.plan(*CASES["compiled"][:2], max_calls=1000, cluster=empty.address)
    finally:
        worker.kill()
        worker.wait()
        empty.close()


def _raise(rng: np.random.Generator) -> None:
    if rng.random() < RARE:
        raise ZeroDivisionError("an unlucky draw")


def _die(rng: np.random.Generator) -> None:
    if rng.random() < RARE:
        os.kill(os.getpid(), signal.SIGKILL)


def _hang(rng: np.random.Generator) -> None:
    if rng.random() < RARE:
        time.sleep(LONG)


@pytest.mark.parametrize(
    ("strange", "message"),
    [
        (_raise, "an unlucky draw"),
        (_die, r"the simulator killed its process \(signal SIGKILL\)"),
        pytest.param(_hang, "the simulator took longer than simulator_timeout=0.5 s", marks=pytest.mark.full),
    ],
)
def test_simulators_that_fail(cluster: Cluster, strange: Any, message: str) -> None:
    """The call is known, as with one worker; the cluster goes on."""
    options: dict[str, Any] = {"simulator_timeout": 0.5} if strange is _hang else {}
    with pytest.raises(sp.SimulatorError, match=message) as caught:
        sp.plan(second_order(), simulator(strange), seed=7, max_calls=60_000, cluster=cluster.address, **options)
    call, partial = caught.value.call, caught.value.partial
    assert call.seed == 7
    assert call.chunk is not None
    assert f"seed 7, chunk {call.chunk}" in str(caught.value)
    assert call.states.shape == (1, 2)
    assert f"action {call.actions[0]}" in str(caught.value)
    assert partial.status == "interrupted" or partial.calls < 60_000
    assert partial.interval[0] < partial.interval[1]
    if strange is _raise:
        with pytest.raises(sp.SimulatorError, match=message):
            reproduce(simulator(strange), call)


@pytest.mark.full
def test_a_simulator_that_kills_the_workers_of_dask(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is not contained; then other plans go on."""
    monkeypatch.setattr(clusters, "ATTEMPTS", 1)
    with pytest.raises(ClusterError, match="a task was lost 1 times"):
        sp.plan(second_order(), simulator(_die), max_calls=60_000, cluster=cluster.address, pool="threads")
    test_the_command_line(cluster)


class Elsewhere:
    """Needs a file that workers do not have."""

    def __call__(self, rng: np.random.Generator) -> None:
        pass

    def __reduce__(self) -> Any:
        return open, ("/no/such/file",)


@pytest.mark.parametrize("pool", ["threads", "processes"])
def test_a_simulator_that_cannot_be_set_up_on_a_worker(cluster: Cluster, pool: Any) -> None:
    with pytest.raises(RuntimeError, match=r"cannot .*: FileNotFoundError: .*/no/such/file"):
        sp.plan(second_order(), simulator(Elsewhere()), max_calls=60_000, cluster=cluster.address, pool=pool)


@pytest.mark.full
@pytest.mark.parametrize("where", ["address", "local"])
def test_a_signal_ends_a_run_soon(cluster: Cluster, where: str) -> None:
    """Simulators that hang are killed wherever they are."""
    alarm = threading.Timer(4.0, os.kill, (os.getpid(), signal.SIGTERM))
    alarm.start()
    address = cluster.address if where == "address" else where
    started = time.monotonic()
    found = sp.plan(second_order(), simulator(_hang), max_calls=60_000, cluster=address)
    assert found.status == "interrupted"
    assert time.monotonic() - started < LONG / 5
    assert not survivors(cluster.token)
    alarm.join()


@pytest.mark.full
def test_time_is_up(cluster: Cluster) -> None:
    found = sp.plan(second_order(), simulator(_hang), max_calls=60_000, max_seconds=2.0, cluster=cluster.address)
    assert found.status == "max_seconds"
    assert found.seconds < LONG / 5
    assert not survivors(cluster.token)


@pytest.mark.full
def test_a_worker_that_joins_later_gets_work(cluster: Cluster) -> None:
    nanny: Any = None

    def join() -> None:
        nonlocal nanny
        nanny = cluster.add_worker()
        wait_until(lambda: any(set(children(worker)) & set(contained(cluster.token)) for worker in children(nanny.pid)))
        joined.append(True)
        os.kill(os.getpid(), signal.SIGTERM)

    joined: list[bool] = []
    thread = threading.Thread(target=join)
    thread.start()
    try:
        found = sp.plan(second_order(1e-4), simulator(), max_calls=10**9, max_seconds=LONG, cluster=cluster.address)
        assert found.status == "interrupted"
    finally:
        thread.join()
        cluster.kill_nanny(nanny)
    assert joined == [True]
