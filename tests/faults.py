"""Runs whose workers, scheduler or client are killed at random moments, and compared with an undisturbed run.

    python -m tests.faults --kills 50 --seed 0

Real processes are killed: with SIGKILL by their numbers, and clients with SIGTERM and SIGINT too. Nothing here depends
on the clock to be right: a kill that comes after a run has ended is counted as late. Linux only.
"""

import argparse
import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import smoothplan as sp
from smoothplan.running.work import Chunk, Outcome, Work
from smoothplan.running.workers import ClusterError

LONG = 300.0
"""Seconds to wait for what must happen, on a machine with other things to do."""

SURVIVAL = 15.0
"""Seconds within which every process of ours must have ended after its client was killed, on a busy machine."""

ENDING = 15.0
"""Seconds within which a client must end after a signal, on a busy machine."""

MARK, CALLS = "SMOOTHPLAN_FAULTS", "SMOOTHPLAN_CALLS"
"""Environment variables: whose process it is; the folder in which simulators count their calls."""

ALLOWED = "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES"

TASKS = "tasks done here:"

GONE = 3
"""The exit status of a client whose cluster is gone."""


def drift(states: Any, actions: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    """A slow simulator, which writes down how many calls it makes, by process."""
    if folder := os.environ.get("SMOOTHPLAN_CALLS"):
        with open(f"{folder}/{os.getpid()}", "a") as log:  # noqa: PTH123 (fast)
            log.write(f"{len(actions)}\n")
    moved = states.copy()
    for row, action in enumerate(actions.tolist()):
        moved[row] += 0.1 * (2 * action - 1) + sum(rng.random() for _ in range(24)) / 24 - 0.5
    return moved, np.exp(-(moved[:, 0] ** 2))


@dataclass(frozen=True)
class Case:
    """What is run."""

    planner: Any
    model: Any
    max_calls: int


def _slow(planner: Any, calls: float) -> Case:
    model = sp.VectorModel(drift, actions=2, discount=0.5, reward_range=(0, 1), terminates=False, initial_state=[0.0])
    return Case(planner, model, int(calls))


SOFT = sp.LogSumExp(0.5)


def case(name: str, size: float = 1.0) -> Case:
    """A case by name; larger ones make more simulator calls."""
    match name:
        case "python":
            return _slow(sp.SecondOrderSmoothCruiser(SOFT, epsilon=0.01, delta=0.1), 250_000 * size)
        case "gap":
            return _slow(sp.OTGapCruiser(SOFT, epsilon=0.01, delta=0.1), 150_000 * size)
        case "reference":
            return _slow(sp.ReferenceCruiser(SOFT, epsilon=0.001, delta=0.1, improve=True), 250_000 * size)
        case "compiled":
            table = sp.models.garnet(states=50, actions=2, branching=4, discount=0.5, seed=1, reward_kind="bernoulli")
            planner = sp.SecondOrderSmoothCruiser(SOFT, epsilon=0.001, delta=0.1)
            return Case(planner, table, int(60_000_000 * size))
        case "search":
            table = sp.models.garnet(states=20_000, actions=3, branching=3, discount=0.9, seed=1)
            return Case(sp.OTGapE(SOFT, epsilon=0.0, delta=0.1), table, int(250_000 * size))
    raise ValueError(f"no case {name!r}")


def go(name: str, size: float = 1.0, **options: Any) -> sp.PlanResult:
    """Runs a case."""
    chosen = case(name, size)
    return sp.plan(chosen.planner, chosen.model, max_calls=chosen.max_calls, **options)


def content(text: str) -> dict[str, Any]:
    """Everything that a run found, from JSON; not how long it took."""
    found: dict[str, Any] = json.loads(text)
    del found["seconds"]
    return found


def marked(token: str) -> list[int]:
    """The processes that have a mark, which children inherit."""
    found = []
    for place in Path("/proc").iterdir():
        with suppress(OSError):
            if place.name.isdigit() and f"{MARK}={token}\0".encode() in (place / "environ").read_bytes():
                found.append(int(place.name))
    return found


def contained(token: str) -> list[int]:
    """Those of them that run simulators."""
    found = []
    for pid in marked(token):
        with suppress(OSError):
            if b"smoothplan.running.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def children(pid: int) -> list[int]:
    """The processes that a process has started and that are alive."""
    found: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found += map(int, (thread / "children").read_text().split())
    return found


def kill(pid: int, number: int = signal.SIGKILL) -> bool:
    """Sends a signal; whether there was such a process."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def wait_until(true: Callable[[], Any], seconds: float = LONG) -> bool:
    """Waits until something is true; whether it became so."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def survivors(token: str) -> int:
    """The processes with a mark that still run simulators, after a while."""
    wait_until(lambda: not contained(token), SURVIVAL)
    return len(contained(token))


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Cluster:
    """A scheduler and workers of Dask, as their command line starts them.

    Args:
        folder: for their files.
        workers: how many.
        allowed_failures: workers that may die of a task before Dask gives it up.
    """

    def __init__(self, folder: Path, workers: int = 2, allowed_failures: int = 3) -> None:
        self.token = uuid.uuid4().hex
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self.nannies: list[subprocess.Popen[bytes]] = []
        self._folder, self._allowed_failures = folder, allowed_failures
        self._stack = ExitStack()
        self._scheduler = self._start_scheduler()
        try:
            for _ in range(workers):
                self.add_worker()
        except BaseException:
            self.close()
            raise

    def add_worker(self, *options: str) -> "subprocess.Popen[bytes]":
        """Starts a worker, with a nanny that starts it again if it dies, and waits until it is there."""
        common = ("--nthreads", "1", "--no-dashboard", "--local-directory", str(self._folder))
        nanny = self._start("distributed.cli.dask_worker", self.address, *common, *options)
        self.nannies.append(nanny)
        return nanny

    def kill_worker(self, nanny: "subprocess.Popen[bytes]") -> bool:
        """Kills a worker, not its nanny; whether there was one."""
        return any(kill(pid) for pid in children(nanny.pid) if pid in _workers())

    def kill_nanny(self, nanny: "subprocess.Popen[bytes]") -> None:
        """Kills a worker together with its nanny."""
        os.killpg(nanny.pid, signal.SIGKILL)
        nanny.wait()
        self.nannies.remove(nanny)

    def kill_scheduler(self) -> None:
        """Kills the scheduler. Workers end with it: theirs is gone."""
        os.killpg(self._scheduler.pid, signal.SIGKILL)
        self._scheduler.wait()

    def restart(self) -> None:
        """Starts a scheduler at the same address, and as many workers as there were."""
        self._scheduler = self._start_scheduler()
        for nanny in list(self.nannies):
            self.kill_nanny(nanny)
            self.add_worker()

    def close(self) -> None:
        """Kills everything."""
        for process in (*self.nannies, self._scheduler):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._stack.close()

    def _start_scheduler(self) -> "subprocess.Popen[bytes]":
        port = self.address.rpartition(":")[2]
        return self._start("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard")

    def _start(self, module: str, *arguments: str) -> "subprocess.Popen[bytes]":
        log = self._stack.enter_context((self._folder / "cluster.log").open("ab"))
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | {MARK: self.token, CALLS: str(self._folder), ALLOWED: str(self._allowed_failures)},
            start_new_session=True,
        )


def _workers() -> set[int]:
    """The processes that a nanny, or anyone else, has spawned."""
    found = set()
    for place in Path("/proc").iterdir():
        with suppress(OSError):
            if place.name.isdigit() and b"spawn_main" in (place / "cmdline").read_bytes():
                found.add(int(place.name))
    return found


class Client:
    """A program that plans, in a process of its own."""

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        self.token = uuid.uuid4().hex
        self._output, self._errors = folder / f"{self.token}.out", folder / f"{self.token}.err"
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-P", __file__, "--child", json.dumps(options)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=os.environ | {MARK: self.token, CALLS: str(folder)},
            )

    @property
    def ended(self) -> bool:
        """Whether it has."""
        return self.process.poll() is not None

    @property
    def output(self) -> str:
        """What it wrote to standard output."""
        return self._output.read_text()

    @property
    def errors(self) -> str:
        """What it wrote to standard error."""
        return self._errors.read_text()

    @property
    def tasks(self) -> int:
        """How many it did in its own process, by the end."""
        return int(self.errors.rpartition(TASKS)[2])

    def wait(self) -> int:
        """Waits for its end; its exit status."""
        return self.process.wait(LONG)

    def wait_for(self, true: Callable[[], Any]) -> None:
        """Waits until something is true, or it has ended."""
        wait_until(lambda: self.ended or true())

    def left(self) -> int:
        """The processes of this client that outlive it for too long; they are ended here."""
        self.process.wait(LONG)
        wait_until(lambda: not marked(self.token), SURVIVAL)
        found = marked(self.token)
        for pid in found:
            kill(pid)
        return len(found)


@dataclass
class Row:
    """What became of a scenario."""

    scenario: str
    kills: int = 0
    late: int = 0  # kills that came when the run was over
    resumed: int = 0  # runs that found something in their checkpoint
    found: int = 0  # chunks in there, in all
    again: int = 0  # simulator calls for chunks that were in there; or chunks, where calls are not known
    left: int = 0  # processes that outlived their client
    runs: int = 0  # that came to their end,
    equal: int = 0  # and with the bits of an undisturbed run
    slowest: float = 0.0  # seconds that a client took to end when it was told to
    seconds: float = 0.0  # in all
    trouble: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether everything is as promised."""
        return self.runs == self.equal and self.runs > 0 and not (self.again or self.left or self.trouble)


class Harness:
    """Scenarios. Random moments come from a seed."""

    def __init__(self, seed: int, folder: Path, size: float = 1.0) -> None:
        self.random = random.Random(seed)
        self.folder, self.size = folder, size
        self._truths: dict[str, dict[str, Any]] = {}
        self._cluster: Cluster | None = None

    def close(self) -> None:
        """Ends the cluster, if there is one."""
        if self._cluster is not None:
            self._cluster.close()

    @property
    def cluster(self) -> Cluster:
        """A cluster for all scenarios."""
        if self._cluster is None:
            self._cluster = Cluster(self.folder)
        return self._cluster

    def truth(self, name: str) -> dict[str, Any]:
        """What an undisturbed run finds, with one worker in this process."""
        if name not in self._truths:
            self._truths[name] = content(go(name, self.size).to_json())
        return self._truths[name]

    def client(self, name: str, **options: Any) -> Client:
        """Starts a client."""
        return Client(self.folder, {"name": name, "size": self.size} | options)

    def checkpoint(self) -> Path:
        """A place for a new one."""
        return self.folder / f"{uuid.uuid4().hex}.checkpoint"

    def pause(self, least: float, most: float, client: Client) -> None:
        """Waits for a random time, unless the client ends first."""
        wait_until(lambda: client.ended, self.random.uniform(least, most))

    def finish(self, row: Row, name: str, client: Client) -> None:
        """Waits for the end of a run that nobody disturbs any more, and compares."""
        status = client.wait()
        row.runs += 1
        if status == 0 and content(client.output) == self.truth(name):
            row.equal += 1
        else:
            row.trouble.append(f"exit status {status}: {client.errors[-300:]!r}")
        row.left += client.left()

    def calls(self) -> int:
        """Simulator calls that were made so far, by any process."""
        return sum(
            int(line)
            for place in self.folder.iterdir()
            if place.name.isdigit()
            for line in place.read_text().split("\n")[:-1]
        )


def facts(checkpoint: Path) -> dict[int, int]:
    """The chunks of a checkpoint, with their simulator calls."""
    found = {}
    with suppress(OSError):
        for line in checkpoint.read_bytes().splitlines(keepends=True):
            if line.endswith(b"}\n") and b'{"chunk":' in line[:40]:
                fact = json.loads(line.partition(b" ")[2])
                found[fact["chunk"]] = fact["calls"]
    return found


def snapshots(checkpoint: Path) -> tuple[int, int]:
    """How many snapshots a checkpoint has, and something that changes with them."""
    with suppress(OSError):
        data = checkpoint.read_bytes()
        return data.count(b' {"snapshot":'), len(data) if b' {"snapshot":' in data else 0
    return 0, 0


def kill_workers(harness: Harness, row: Row, kills: int) -> None:
    """Worker processes of a pool are killed."""
    while row.kills < kills and row.late < kills:
        client = harness.client("python", workers=2, pool="processes")
        client.wait_for(partial(contained, client.token))
        while row.kills < kills:
            harness.pause(0.8, 2.5, client)
            victims = contained(client.token)
            if client.ended:
                row.late += 1
                break
            if victims:
                row.kills += kill(harness.random.choice(victims))
        harness.finish(row, "python", client)


def kill_cluster_workers(harness: Harness, row: Row, kills: int) -> None:
    """Workers of a cluster are killed by themselves, and are started again by their nannies."""
    _disturb_cluster(harness, row, kills, lambda nanny: int(harness.cluster.kill_worker(nanny)))


def kill_nannies(harness: Harness, row: Row, kills: int) -> None:
    """Workers of a cluster are killed with their nannies, while others go on; later, new ones join."""

    def strike(nanny: "subprocess.Popen[bytes]") -> int:
        harness.cluster.kill_nanny(nanny)
        harness.cluster.add_worker()
        return 1

    _disturb_cluster(harness, row, kills, strike)


def kill_contained(harness: Harness, row: Row, kills: int) -> None:
    """Processes of our own on the workers of a cluster are killed."""

    def strike(_: Any) -> int:
        victims = contained(harness.cluster.token)
        return int(bool(victims) and kill(harness.random.choice(victims)))

    _disturb_cluster(harness, row, kills, strike, names=("python",))


def _disturb_cluster(
    harness: Harness,
    row: Row,
    kills: int,
    strike: Callable[["subprocess.Popen[bytes]"], int],
    names: tuple[str, ...] = ("python", "compiled"),
) -> None:
    cluster = harness.cluster
    while row.kills < kills and row.late < kills:
        name = harness.random.choice(names)
        client = harness.client(name, cluster=cluster.address)
        harness.pause(1.0, 5.0, client)
        while row.kills < kills and not client.ended:
            row.kills += strike(harness.random.choice(cluster.nannies))
            harness.pause(1.0, 4.0, client)
        row.late += client.ended
        harness.finish(row, name, client)


def kill_scheduler(harness: Harness, row: Row, kills: int) -> None:
    """The scheduler is killed, and another started at its address, with other workers."""
    cluster = harness.cluster
    while row.kills < kills and row.late < kills:
        checkpoint = harness.checkpoint()
        client = harness.client("python", cluster=cluster.address, checkpoint=str(checkpoint))
        client.wait_for(partial(facts, checkpoint))
        harness.pause(0.0, 2.0, client)
        row.late += client.ended
        row.kills += not client.ended
        cluster.kill_scheduler()
        harness.pause(0.0, 3.0, client)
        cluster.restart()
        if client.wait() == GONE:  # which is honest, but what is done must not be lost
            row.resumed += 1
            row.found += len(facts(checkpoint))
            client = harness.client("python", cluster=cluster.address, checkpoint=str(checkpoint))
        harness.finish(row, "python", client)


def kill_client(
    name: str, number: int = signal.SIGKILL, cut: bool = False, shared: bool = False, **options: Any
) -> Callable[[Harness, Row, int], None]:
    """A client is killed, or told to end, and resumed, until it has come to its end.

    Args:
        name: of the case.
        number: of the signal.
        cut: whether the checkpoint loses its tail in between.
        shared: whether the cluster of the harness does the work.
        **options: of the run.
    """

    def scenario(harness: Harness, row: Row, kills: int) -> None:
        chosen = options | ({"cluster": harness.cluster.address} if shared else {})
        tokens = [harness.cluster.token] if shared else []
        while row.kills < kills and row.late < kills:
            checkpoint = harness.checkpoint()
            while True:
                before, saved, calls = facts(checkpoint), snapshots(checkpoint), harness.calls()
                row.resumed += bool(before or saved[0])
                row.found += len(before)
                client = harness.client(name, checkpoint=str(checkpoint), **chosen)
                if row.kills >= kills or not _strike(harness, row, client, checkpoint, number):
                    break
                if number != signal.SIGKILL:
                    _check_farewell(row, client)
                row.left += client.left()
                row.left += sum(map(survivors, tokens))
                if cut:
                    _cut_tail(harness, checkpoint)
            harness.finish(row, name, client)
            row.left += sum(map(survivors, tokens))
            if client.process.returncode == 0:
                row.again += max(client.tasks - (len(facts(checkpoint)) - len(before)), 0)
            if name == "python":
                needed = harness.truth(name)["calls"] - sum(before.values())
                row.again += max(harness.calls() - calls - needed, 0)

    return scenario


def _strike(harness: Harness, row: Row, client: Client, checkpoint: Path, number: int) -> bool:
    """Sends a signal to a client, mostly when it has got on a little; whether it was in time."""
    before = len(facts(checkpoint)), snapshots(checkpoint)
    if harness.random.random() < 0.2 and number == signal.SIGKILL:
        harness.pause(0.0, 3.0, client)
    else:
        wait_until(lambda: client.ended or (len(facts(checkpoint)), snapshots(checkpoint)) != before)
        harness.pause(0.0, 1.5, client)
    if client.ended:
        row.late += 1
        return False
    row.kills += kill(client.process.pid, number)
    return True


def _check_farewell(row: Row, client: Client) -> None:
    """A client that was told to end does so soon, with a valid result."""
    started = time.monotonic()
    try:
        status = client.process.wait(ENDING)
    except subprocess.TimeoutExpired:
        row.trouble.append(f"still there {ENDING:g} s after a signal")
        client.process.kill()
        return
    if status < 0 and client.output.endswith("}\n"):  # the run was over, and had said what it found
        row.kills, row.late = row.kills - 1, row.late + 1
        return
    row.slowest = max(row.slowest, time.monotonic() - started)
    if status != 0 or content(client.output)["status"] not in ("interrupted", "max_calls"):
        row.trouble.append(f"after a signal: exit status {status}, {client.output[-100:]!r}, {client.errors[-300:]!r}")


def _cut_tail(harness: Harness, checkpoint: Path) -> None:
    """Takes bytes from the end of a checkpoint, but leaves its header."""
    if checkpoint.exists():
        data = checkpoint.read_bytes()
        most = min(500, len(data) - len(data.partition(b"\n")[0]) - 1)
        if most > 0:
            os.truncate(checkpoint, len(data) - harness.random.randint(1, most))


SCENARIOS: dict[str, tuple[float, Callable[[Harness, Row, int], None]]] = {
    "workers of a process pool": (6, kill_workers),
    "workers of a cluster": (5, kill_cluster_workers),
    "workers with their nannies": (3, kill_nannies),
    "simulators on a cluster": (3, kill_contained),
    "the scheduler": (3, kill_scheduler),
    "client, threads": (5, kill_client("compiled", workers=2)),
    "client, processes": (4, kill_client("python", workers=2, pool="processes")),
    "client, one worker": (3, kill_client("gap")),
    "client, cluster": (4, kill_client("python", shared=True)),
    "client, local cluster": (2, kill_client("python", cluster="local", workers=2)),
    "client, a search": (4, kill_client("search")),
    "client, around a reference": (4, kill_client("reference", workers=2)),
    "client, checkpoint cut": (3, kill_client("python", cut=True, workers=2)),
    "SIGTERM, threads": (1, kill_client("compiled", signal.SIGTERM, workers=2)),
    "SIGINT, processes": (1, kill_client("python", signal.SIGINT, workers=2)),
    "SIGTERM, cluster": (1, kill_client("python", signal.SIGTERM, shared=True)),
    "SIGINT, a search": (1, kill_client("search", signal.SIGINT)),
}
"""Scenarios, with their shares of the kills."""


@contextmanager
def harness(seed: int, size: float = 1.0) -> Iterator[Harness]:
    """A harness with a folder of its own, which leaves nothing behind."""
    with tempfile.TemporaryDirectory(prefix="smoothplan-faults-", ignore_cleanup_errors=True) as folder:
        found = Harness(seed, Path(folder), size)
        try:
            yield found
        finally:
            found.close()


def run(found: Harness, scenario: str, kills: int) -> Row:
    """Runs a scenario with so many kills."""
    row = Row(scenario)
    started = time.monotonic()
    SCENARIOS[scenario][1](found, row, kills)
    row.seconds = time.monotonic() - started
    return row


HEADS = ("scenario", "kills", "late", "resumed", "found again", "done again", "left", "runs", "equal", "slowest", "s")


def line(row: Row) -> str:
    """A row of the table."""
    slowest = f"{row.slowest:.1f}" if row.slowest else ""
    cells = (row.scenario, row.kills, row.late, row.resumed, row.found, row.again, row.left, row.runs, row.equal)
    return _line((*cells, slowest, f"{row.seconds:.0f}")) + "".join(f"\n    {text}" for text in row.trouble)


def _line(cells: tuple[Any, ...]) -> str:
    return f"{cells[0]:<28}" + "".join(
        f"{cell:>{len(head) + 2}}" for cell, head in zip(cells[1:], HEADS[1:], strict=True)
    )


def main() -> int:
    """Prints the table; status 1 on any difference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50, help="at least, in all")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    parser.add_argument("--size", type=float, default=1.0, help="of the runs")
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        return _child(**options.child)
    started = time.monotonic()
    chosen = {name: share for name, (share, _) in SCENARIOS.items() if options.only in name}
    whole = sum(share for share, _ in SCENARIOS.values())
    print(f"seed {options.seed}\n{_line(HEADS)}", flush=True)
    rows = []
    with harness(options.seed, options.size) as found:
        for name, share in chosen.items():
            rows.append(run(found, name, max(1, math.ceil(options.kills * share / whole))))
            print(line(rows[-1]), flush=True)
    total = Row("all", seconds=time.monotonic() - started)
    for name in ("kills", "late", "resumed", "found", "again", "left", "runs", "equal"):
        setattr(total, name, sum(getattr(row, name) for row in rows))
    good = all(row.good for row in rows)
    print(f"{line(total)}\n{'all equal' if good else 'DIFFERENT'}")
    return 0 if good else 1


def _child(**options: Any) -> int:
    """A client: plans, and prints what it has; to standard error, how many tasks were done in this process."""
    # A shell that starts a job in the background has it ignore interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tasks, really = count(), Work.__call__

    def counted(work: Work, task: Chunk) -> Outcome:
        next(tasks)
        return really(work, task)

    try:
        with mock.patch.object(Work, "__call__", counted):
            print(go(**options).to_json())
    except ClusterError as error:
        print(error, file=sys.stderr)
        return GONE
    print(f"{TASKS} {next(tasks)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
