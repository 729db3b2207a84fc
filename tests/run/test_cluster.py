"""Real schedulers and workers of Dask: the bits of one worker, clear errors, and nothing left behind."""

import ctypes
import faulthandler
import json
import os
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
import psutil
import pytest

import smoothplan as sp
from smoothplan.graph.explorer import PairSampler
from smoothplan.run import cluster as clusters
from smoothplan.run.chunks import ClusterError, Work
from tests.common import content, ending, vectorised
from tests.faults.harness import Cluster, free_port, ring, wait_until

DaskClient: Any = distributed.Client
"""Parts of it have no types."""

LONG = 300.0
SOFT = sp.LogSumExp(0.5)
RARE = 0.001
"""The probability of a draw at which a simulator does something bad."""

full = pytest.mark.full
pytestmark = pytest.mark.xdist_group("cluster")  # one cluster serves all


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first chunk of a simulator need not load much here."""
    monkeypatch.setattr(clusters, "WARM_UP", 2.0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two workers. Dask gives a task up when its worker dies, so that we send it again."""
    found = Cluster(tmp_path_factory.mktemp("cluster"), workers=2, allowed_failures=0)
    with DaskClient(found.address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=60)  # tests compare the processes before and after a run
    yield found
    found.close()


DECLARED: dict[str, Any] = {"actions": 2, "discount": 0.5, "reward_range": (0, 1), "terminates": False}


def simulator(strange: Callable[[np.random.Generator], Any] = lambda rng: None) -> sp.VectorModel:
    """Drifts, one state at a time; a closure over something that may be strange."""

    def step(state: Any, action: int, rng: np.random.Generator) -> tuple[Any, float, bool]:
        strange(rng)
        moved = state + 0.1 * (2 * action - 1) + 0.01 * rng.standard_normal(state.shape)
        return moved, float(np.exp(-(moved[0] ** 2))), False

    return sp.VectorModel.from_scalar(step, **DECLARED, initial_state=[0.0, 1.0])


def second_order(epsilon: float = 0.001) -> sp.SecondOrderSmoothCruiser:
    return sp.SecondOrderSmoothCruiser(SOFT, epsilon=epsilon, delta=0.1)


def garnet(**options: Any) -> sp.TabularModel:
    given: dict[str, Any] = {"states": 50, "actions": 2, "branching": 4, "discount": 0.3, "seed": 1}
    return sp.models.garnet(**given | options)


def around_a_reference() -> tuple[Any, Any, int]:
    """A run that improves its reference, with enough calls to do so."""
    model = sp.VectorModel(ring, **DECLARED, initial_state=0, max_successors=2)
    reference = sp.SharedReference(model, SOFT, seed=1)
    return sp.ReferenceCruiser(SOFT, reference, epsilon=1e-4, delta=0.1, improve=True), model, 25_000


CASES: dict[str, Callable[[], tuple[Any, Any, int]]] = {
    "compiled": lambda: (second_order(), garnet(), 3_000_000),
    "ending": lambda: (second_order(), ending(2, 0.3, 1), 1_000_000),
    "closure": lambda: (second_order(), simulator(), 60_000),
    "large table": lambda: (second_order(), garnet(states=150_000), 100_000),
    "reference": around_a_reference,
}


def plan(name: str, **options: Any) -> sp.PlanResult:
    planner, model, calls = CASES[name]()
    found = sp.plan(planner, model, seed=3, max_calls=calls, **options)
    assert name != "reference" or planner.reference.calls > 0  # it was improved
    return found


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_processes_on_this_machine_listen_on_loopback_only() -> None:
    """Whoever reaches a port of Dask can run code: scheduler, nannies and workers, and no dashboard."""

    def listening() -> set[tuple[str, int]]:
        processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
        found = [entry for process in processes for entry in process.net_connections() if entry.status == "LISTEN"]
        return {(entry.laddr.ip, entry.laddr.port) for entry in found}

    before = listening()
    pool = clusters.DaskPool(2, Work(PairSampler(), simulator(), np.zeros(2), 0))
    try:
        wait_until(lambda: len(pool._client.nthreads()) == 2, LONG)
        addresses = listening() - before
        assert len(addresses) >= 5  # of the scheduler, two nannies and two workers
        assert {ip for ip, _ in addresses} == {"127.0.0.1"}
    finally:
        pool.close()


@pytest.mark.parametrize("name", [pytest.param(name, marks=full if name == "compiled" else ()) for name in CASES])
def test_the_bits_of_one_worker(cluster: Cluster, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    alone = plan(name)
    assert alone.samples > 10
    assert content(plan(name, workers=cluster.address)) == content(alone)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("recurs", [False, True])
def test_a_decision_has_the_bits_of_one_worker(cluster: Cluster, recurs: bool) -> None:
    """Around a fit, or around what a search has learnt: either goes to the workers as it is."""
    table = sp.models.garnet(states=12, actions=2, discount=0.8, seed=3)
    model = vectorised(table) if recurs else simulator()
    found = [sp.decide(model, 0 if recurs else None, calls=10_000, workers=workers) for workers in (1, cluster.address)]
    one, other = ({**json.loads(decision.to_json()), "seconds": 0.0} for decision in found)
    assert one == other
    assert one["returns"][one["action"]] > 20


def test_processes_on_this_machine_end_with_the_run(capfd: pytest.CaptureFixture[str]) -> None:
    """What a simulator prints goes to standard error, and nothing else does."""
    before = children()
    planner, model, calls = second_order(), simulator(lambda rng: print("so far, so good")), 20_000
    found = [sp.plan(planner, model, max_calls=calls, workers=count) for count in (1, 2)]
    assert content(found[0]) == content(found[1])
    assert children() <= before
    said = capfd.readouterr()
    assert set(said.out.splitlines()) == {"so far, so good"}
    assert said.err.replace("so far, so good", "").split() == []  # lines of two processes may be mixed


@full
def test_a_client_is_left_as_it_was(cluster: Cluster) -> None:
    """Its cluster has no task and no future of ours afterwards, and computes the next plan."""
    alone = content(plan("closure"))
    with DaskClient(cluster.address, set_as_default=False) as client:
        mine = client.submit(sum, [1, 2, 3])
        for _ in range(2):
            assert content(plan("closure", workers=client)) == alone
            assert client.status == "running"
            assert wait_until(lambda: list(client.futures) == [mine.key])
            assert wait_until(lambda: _tasks(client) == [mine.key])
        assert mine.result() == 6


def _tasks(client: Any) -> list[Any]:
    found: list[Any] = client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks))
    return found


HELPER = "def move(states, actions, scale):\n    return states + scale * (2 * actions - 1)[:, None]\n"

SCRIPT = """
import sys
import numpy as np
import helper
import smoothplan as sp

SCALE = 0.1

def step(states, actions, rng):
    moved = helper.move(states, actions, SCALE) + 0.01 * rng.standard_normal(states.shape)
    return moved, np.exp(-moved[:, 0] ** 2)

model = sp.VectorModel(step, actions=2, discount=0.5, reward_range=(0, 1), terminates=False, initial_state=[0.0])
planner = sp.SecondOrderSmoothCruiser(sp.LogSumExp(0.5), epsilon=0.01, delta=0.1)
print(sp.plan(planner, model, max_calls=60_000, workers=eval(sys.argv[1])).to_json())
"""


@full
def test_a_script_without_a_guard(tmp_path: Path) -> None:
    """Functions of the script travel with the work, and modules are found; only its own line is on standard output."""
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text(HELPER)
    found = []
    for where in ("1", "2"):
        command = [sys.executable, "-W", "error", str(tmp_path / "script.py"), where]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LONG)
        assert done.stderr == ""
        found.append(json.loads(done.stdout) | {"seconds": 0})
    assert found[0] == found[1]


def test_nobody_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No scheduler, or no workers: an error; unless time is up first."""
    monkeypatch.setattr(clusters, "PATIENCE", 2.0)
    for address in (f"tcp://127.0.0.1:{free_port()}", "strange://x:1"):
        with pytest.raises(ClusterError, match=f"no Dask scheduler answers at workers='{address}'") as caught:
            plan("ending", workers=address)
        assert caught.value.partial.calls == 0
    empty = Cluster(tmp_path, workers=0)
    try:
        assert plan("ending", max_seconds=0.5, workers=empty.address).status == "max_seconds"
        with pytest.raises(ClusterError, match="has no workers: start some with `dask worker`"):
            plan("ending", workers=empty.address)
    finally:
        empty.close()


def test_an_agent_does_not_keep_the_work_of_all_its_decisions(cluster: Cluster) -> None:
    found = []
    for where in (1, cluster.address):
        with sp.Agent(simulator(), calls=500, reference_calls=200, workers=where) as agent:
            found.append([agent.decide([0.1 * step, 0.0]).q.tolist() for step in range(8)])
            pool = agent._workers._pool
            assert pool is None or (isinstance(pool, clusters.DaskPool) and len(pool._works) <= 4)
    assert found[0] == found[1]


def test_wrong_kinds_of_workers(cluster: Cluster) -> None:
    with pytest.raises(TypeError, match="workers must be a number, the address of a Dask scheduler or a client, got"):
        plan("ending", workers=["local"])
    client = DaskClient(cluster.address, set_as_default=False)
    client.close()
    with pytest.raises(ClusterError, match="is asynchronous or not connected"):
        plan("ending", workers=client)


def test_dask_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads do without it."""
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert plan("ending", workers=2).status == "max_calls"
    for options in ({"workers": 2}, {"workers": "tcp://127.0.0.1:1"}, {"chunk_seconds": 1.0}):
        with pytest.raises(ImportError, match=r'needs Dask.*: pip install "smoothplan\[dask\]"'):
            plan("closure", **options)


def test_another_version_on_a_worker_that_joined_later() -> None:
    with pytest.raises(RuntimeError, match=r"a worker has smoothplan .*: install version 0\.0\.0 there"):
        clusters.compute(b"", [], None, False, "0.0.0")


def _crash(rng: np.random.Generator) -> None:
    if rng.random() < RARE:
        ctypes.string_at(0)


def _hang(rng: np.random.Generator) -> None:
    if rng.random() < RARE:
        time.sleep(LONG)


def _hang_in_c(rng: np.random.Generator) -> None:
    if rng.random() < RARE:
        ctypes.PyDLL(None).sleep(1000)  # with the interpreter lock


def _eat(rng: np.random.Generator) -> None:
    eaten: list[Any] = []
    while rng.random() < RARE or eaten:
        eaten.append(np.ones(1 << 20))


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # JAX may be loaded; the child does not use it
@pytest.mark.parametrize(
    ("strange", "local", "options", "message"),
    [
        (_crash, False, {}, "the simulator ended its process, by a crash or an exit"),
        (_hang_in_c, False, {"chunk_seconds": 1.0}, "a chunk took longer than chunk_seconds=1 s"),
        pytest.param(
            _eat, True, {"worker_memory": 600_000_000}, "more memory .* of 600000000 bytes in use", marks=full
        ),
    ],
)
def test_simulators_that_fail(cluster: Cluster, strange: Any, local: bool, options: Any, message: str) -> None:
    """The call is named, as with one worker; what was done before is there; no process is left."""
    before = children()
    where = 1 if local else cluster.address
    with pytest.raises(sp.SimulatorError, match=message) as caught:
        sp.plan(second_order(), simulator(strange), seed=7, max_calls=60_000, workers=where, **options)
    call, partial = caught.value.call, caught.value.partial
    assert call.seed == 7
    assert call.row is not None
    assert f"seed 7, chunk {call.chunk}" in str(caught.value)
    assert f"action {call.actions[call.row]}" in str(caught.value)
    assert partial.calls < 60_000
    assert partial.interval[0] < partial.interval[1]
    assert not local or children() <= before
    if strange is _eat:
        return

    def again(states: int) -> int:
        """Another process makes the call again, and comes to the same end; without the last row it does not."""
        child = os.fork()
        if child == 0:
            faulthandler.disable()
            signal.alarm(2)
            if states:
                part = type(call)(call.states[:states], call.actions[:states], call.generator)
                sp.reproduce(simulator(strange), part)
            os._exit(0)
        return os.waitpid(child, 0)[1]

    assert again(call.row) == 0
    assert again(call.row + 1) != 0


@full
def test_a_slow_leak_is_survived() -> None:
    """A process that has grown too large is replaced, and its batch is computed again."""
    kept: list[Any] = []

    def leak(rng: np.random.Generator) -> None:
        kept.append(np.ones(1_000))  # 8 kB a call, half a gigabyte in all
        time.sleep(1e-4)  # so that a batch takes a small part of that

    found = sp.plan(second_order(), simulator(leak), seed=7, max_calls=60_000, worker_memory=500_000_000)
    assert content(found) == content(sp.plan(second_order(), simulator(), seed=7, max_calls=60_000))


@full
def test_a_kill_from_outside_is_not_blamed_on_the_simulator(tmp_path: Path) -> None:
    """Neither of a worker, nor of the child that then computes its batch again."""
    killed = tmp_path / "killed"

    def strange(rng: np.random.Generator) -> None:
        before = killed.read_text() if killed.exists() else ""
        if len(before) < 2:
            killed.write_text(before + "x")
            os.kill(os.getpid(), signal.SIGKILL)

    found = sp.plan(second_order(), simulator(strange), seed=7, max_calls=60_000, worker_memory=2_000_000_000)
    assert killed.read_text() == "xx"
    assert content(found) == content(sp.plan(second_order(), simulator(), seed=7, max_calls=60_000))


class Elsewhere:
    """Needs a file that workers do not have."""

    def __call__(self, rng: np.random.Generator) -> None:
        pass

    def __reduce__(self) -> Any:
        return open, ("/no/such/file",)


def test_a_simulator_that_cannot_be_set_up_on_a_worker(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match=r"cannot be set up in another process: FileNotFoundError: .*/no/such/file"):
        sp.plan(second_order(), simulator(Elsewhere()), max_calls=60_000, workers=cluster.address)


@pytest.mark.parametrize("stop", [pytest.param("signal", marks=full), "time"])
def test_a_run_ends_soon_where_a_simulator_hangs(stop: str) -> None:
    before = children()
    alarm = threading.Timer(6.0, os.kill, (os.getpid(), signal.SIGTERM))
    if stop == "signal":
        alarm.start()
    limit = 6.0 if stop == "time" else None
    found = sp.plan(second_order(), simulator(_hang), max_calls=60_000, max_seconds=limit, workers=2)
    assert found.status == ("interrupted" if stop == "signal" else "max_seconds")
    assert found.seconds < LONG / 5
    assert children() <= before
    alarm.cancel()
