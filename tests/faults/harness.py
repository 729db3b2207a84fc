"""Runs whose workers, scheduler, client or checkpoint are hurt at random moments, compared with an undisturbed run.

    python -m tests.faults --kills 3 --seed 0

Real processes are killed, by their numbers, and clients are also told to end. Nothing here depends on the clock to be
right: a kill that comes after the end of a run is counted as late. Linux only.
"""

import argparse
import json
import os
import random
import shutil
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
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

import smoothplan as sp

LONG = 300.0
"""Seconds to wait for what must happen, on a machine with other things to do."""

ENDING = 15.0
"""Seconds within which a client, and every process of a client that was killed, must have ended, on a busy machine."""

MARK, BROKEN = "SMOOTHPLAN_FAULTS", "SMOOTHPLAN_BROKEN"
"""Environment variables: whose process it is; what is wrong with a simulator."""

GONE, REFUSED, NAMED = 3, 4, 5
"""Exit statuses of a client: its cluster is gone; its checkpoint is refused; its simulator failed, and is named."""


def drift(states: Any, actions: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    """A slow simulator, which may be broken: then it hangs, or eats memory, at a rare draw."""
    broken, eaten = os.environ.get("SMOOTHPLAN_BROKEN"), []
    moved = states.copy()
    for row, action in enumerate(actions.tolist()):
        luck = sum(rng.random() for _ in range(24)) / 24 - 0.5
        moved[row] += 0.1 * (2 * action - 1) + luck
        while broken and luck > 0.2:
            if broken == "eats":
                eaten.append(np.ones(1 << 20))
            else:
                time.sleep(1.0)
    return moved, np.exp(-(moved[:, 0] ** 2))


def ring(states: Any, actions: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    """A slow simulator of few states."""
    moved = states.copy()
    for row, action in enumerate(actions.tolist()):
        luck = sum(rng.random() for _ in range(24)) / 24
        moved[row] = (moved[row] + (action if luck < 0.5 else 1)) % 5
    return moved, (moved == 3) * 1.0


SOFT = sp.LogSumExp(0.5)
DECLARED: dict[str, Any] = {"actions": 2, "discount": 0.5, "reward_range": (0, 1), "terminates": False}


def go(name: str, size: float = 1.0, **options: Any) -> sp.PlanResult:
    """Runs a case by name; larger ones make more simulator calls."""
    planner: Any
    model: Any = sp.VectorModel(drift, **DECLARED, initial_state=[0.0])
    match name:
        case "python":
            planner, calls = sp.SecondOrderSmoothCruiser(SOFT, epsilon=0.01, delta=0.1), 250_000 * size
        case "reference":
            model = sp.VectorModel(ring, **DECLARED, initial_state=0, max_successors=2)
            reference = sp.SharedReference(model, SOFT, seed=1)
            planner, calls = sp.ReferenceCruiser(SOFT, reference, epsilon=1e-4, delta=0.1, improve=True), 250_000 * size
        case "compiled":
            model = sp.models.garnet(states=50, actions=2, branching=4, discount=0.5, seed=1, reward_kind="bernoulli")
            planner, calls = sp.SecondOrderSmoothCruiser(SOFT, epsilon=0.001, delta=0.1), 60_000_000 * size
        case "search":
            model = sp.models.garnet(states=20_000, actions=3, branching=3, discount=0.9, seed=1)
            planner, calls = sp.OTGapE(SOFT, epsilon=0.0, delta=0.1), 250_000 * size
        case _:
            raise ValueError(f"no case {name!r}")
    found = sp.plan(planner, model, max_calls=int(calls), **options)
    if name == "reference" and found.status == "max_calls":
        assert reference.calls > 1000  # otherwise nothing was improved
    return found


def content(text: str) -> dict[str, Any]:
    """Everything that a run found, from JSON; not how long it took."""
    found: dict[str, Any] = json.loads(text)
    del found["seconds"]
    return found


def marked(token: str, program: bytes = b"") -> list[int]:
    """The processes that have a mark, which children inherit, and that run a program."""
    found = []
    for place in Path("/proc").iterdir():
        with suppress(OSError):
            ours = place.name.isdigit() and f"{MARK}={token}\0".encode() in (place / "environ").read_bytes()
            if ours and program in (place / "cmdline").read_bytes():
                found.append(int(place.name))
    return found


WORKER = b"spawn_main"
"""In the command of a worker, which its nanny has spawned."""


def kill(pid: int, number: int = signal.SIGKILL) -> bool:
    """Sends a signal to a process; whether there was one."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def wait_until(true: Callable[[], Any], seconds: float = LONG) -> bool:
    """Waits until something is true; whether it became so."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


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
        self.start_scheduler()
        for _ in range(workers):
            self.add_worker()

    def add_worker(self) -> None:
        """Starts a worker, with a nanny that starts it again if it dies."""
        options = ("--nthreads", "1", "--no-dashboard", "--local-directory", str(self._folder))
        self.nannies.append(self._start("distributed.cli.dask_worker", self.address, *options))

    def close(self) -> None:
        """Kills everything."""
        for process in (*self.nannies, self.scheduler):
            end(process)
        self._stack.close()

    def start_scheduler(self) -> None:
        """Starts one, at the address of the cluster."""
        port = self.address.rpartition(":")[2]
        options = ("--host", "127.0.0.1", "--port", port, "--no-dashboard")
        self.scheduler = self._start("distributed.cli.dask_scheduler", *options)

    def replace_worker(self, nanny: "subprocess.Popen[bytes]") -> None:
        """Kills a nanny with its worker, and starts others."""
        self.nannies.remove(nanny)
        end(nanny)
        self.add_worker()

    def _start(self, module: str, *arguments: str) -> "subprocess.Popen[bytes]":
        log = self._stack.enter_context((self._folder / "cluster.log").open("ab"))
        allowed = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": str(self._allowed_failures)}
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | allowed | {MARK: self.token},
            start_new_session=True,
        )


def end(process: "subprocess.Popen[bytes]") -> None:
    """Kills a process with all of its group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Client:
    """A program that plans, in a process of its own."""

    def __init__(self, folder: Path, options: dict[str, Any], broken: str = "") -> None:
        self.token = uuid.uuid4().hex
        self._files = folder / f"{self.token}.out", folder / f"{self.token}.err"
        with self._files[0].open("wb") as output, self._files[1].open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-P", __file__, "--child", json.dumps(options)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=os.environ | {MARK: self.token, BROKEN: broken},
            )

    @property
    def ended(self) -> bool:
        """Whether it has."""
        return self.process.poll() is not None

    @property
    def said(self) -> tuple[str, str]:
        """What it wrote to standard output and to standard error."""
        output, errors = (file.read_text() for file in self._files)
        return output, errors

    def wait(self) -> int:
        """Waits for its end; its exit status."""
        return self.process.wait(LONG)

    def wait_for(self, true: Callable[[], Any]) -> None:
        """Waits until something is true, or it has ended."""
        wait_until(lambda: self.ended or true())


@dataclass
class Row:
    """What became of a scenario."""

    scenario: str
    kills: int = 0  # or other harm
    late: int = 0  # kills that came when the run was over
    runs: int = 0  # that came to their end
    trouble: list[str] = field(default_factory=list)  # other bits than undisturbed, processes left

    @property
    def good(self) -> bool:
        """Whether everything is as promised."""
        return self.runs > 0 and not self.trouble


class Harness:
    """Scenarios. Random moments come from a seed."""

    def __init__(self, seed: int, folder: Path, size: float, stack: ExitStack) -> None:
        self.random, self.folder, self.size, self._stack = random.Random(seed), folder, size, stack
        self._truths: dict[str, dict[str, Any]] = {}

    @cached_property
    def cluster(self) -> Cluster:
        """A cluster for all scenarios."""
        found = Cluster(self.folder)
        self._stack.callback(found.close)
        return found

    def truth(self, name: str) -> dict[str, Any]:
        """What an undisturbed run finds, with one worker in this process."""
        if name not in self._truths:
            self._truths[name] = content(go(name, self.size).to_json())
        return self._truths[name]

    def client(self, name: str, broken: str = "", **options: Any) -> Client:
        """Starts a client."""
        return Client(self.folder, {"name": name, "size": self.size} | options, broken)

    def checkpoint(self) -> Path:
        """A place for a new one, in a folder of its own."""
        place = self.folder / uuid.uuid4().hex
        place.mkdir()
        return place / "run.ckpt"

    def pause(self, least: float, most: float, client: Client) -> None:
        """Waits for a random time, unless the client ends first."""
        wait_until(lambda: client.ended, self.random.uniform(least, most))

    def finish(self, row: Row, name: str, client: Client) -> None:
        """Waits for the end of a run that nobody disturbs any more, and compares."""
        status, (output, errors) = client.wait(), client.said
        row.runs += 1
        if status != 0 or content(output) != self.truth(name):
            row.trouble.append(f"exit status {status}: {errors[-300:]!r}")
        self.leave(row, client)

    def leave(self, row: Row, client: Client) -> None:
        """Waits for the end of a client and of its processes; those that outlive it for too long are ended here."""
        client.wait()
        if not wait_until(lambda: not marked(client.token), ENDING):
            row.trouble.append(f"{sum(map(kill, marked(client.token)))} processes are left behind")


def progress(checkpoint: Path) -> Any:
    """Something that changes with a checkpoint; a database that is locked cannot be asked."""
    files = sorted(checkpoint.parent.iterdir())
    with suppress(OSError):
        return [(file.name, file.stat().st_mtime_ns) for file in files]
    return None


def kill_workers(name: str, kind: str) -> Callable[[Harness, Row, int], None]:
    """Workers of Dask are killed: of a client, of a cluster, or of a cluster with their nannies."""

    def scenario(harness: Harness, row: Row, kills: int) -> None:
        while row.kills < kills and row.late < kills:
            client = harness.client(name, workers=2 if kind == "local" else harness.cluster.address)
            token = client.token if kind == "local" else harness.cluster.token
            client.wait_for(partial(marked, token, WORKER))
            harness.pause(1.0, 5.0, client)
            while row.kills < kills and not client.ended:
                victims = marked(token, WORKER)
                if kind == "nannies":
                    harness.cluster.replace_worker(harness.random.choice(harness.cluster.nannies))
                    row.kills += 1
                elif victims:
                    row.kills += kill(harness.random.choice(victims))
                harness.pause(1.0, 4.0, client)
            row.late += client.ended
            harness.finish(row, name, client)

    return scenario


def kill_scheduler(harness: Harness, row: Row, kills: int) -> None:
    """The scheduler is killed, and another started at its address, with other workers."""
    cluster = harness.cluster
    while row.kills < kills and row.late < kills:
        checkpoint = harness.checkpoint()
        client = harness.client("python", workers=cluster.address, checkpoint=str(checkpoint))
        client.wait_for(partial(progress, checkpoint))
        harness.pause(0.0, 4.0, client)
        row.late += client.ended
        row.kills += not client.ended
        end(cluster.scheduler)
        harness.pause(0.0, 3.0, client)
        cluster.start_scheduler()
        for nanny in list(cluster.nannies):
            cluster.replace_worker(nanny)
        if client.wait() == GONE:  # which is honest, but what is done must not be lost
            client = harness.client("python", workers=cluster.address, checkpoint=str(checkpoint))
        harness.finish(row, "python", client)


def kill_client(
    name: str, number: int = signal.SIGKILL, damage: bool = False, workers: int | None = 1
) -> Callable[[Harness, Row, int], None]:
    """A client is killed, or told to end, and resumed, until it has come to its end.

    Args:
        name: of the case.
        number: of the signal.
        damage: whether the checkpoint is cut or overwritten in between.
        workers: of the run; None for the cluster of the harness.
    """

    def scenario(harness: Harness, row: Row, kills: int) -> None:
        where = harness.cluster.address if workers is None else workers
        while row.kills < kills and row.late < kills:
            checkpoint = harness.checkpoint()
            while True:
                client = harness.client(name, checkpoint=str(checkpoint), workers=where)
                struck = row.kills < kills and _strike(harness, row, client, checkpoint, number)
                if damage and client.wait() == REFUSED:
                    shutil.rmtree(checkpoint.parent)
                    checkpoint.parent.mkdir()
                    continue
                if not struck:
                    break
                if number != signal.SIGKILL:
                    _check_farewell(row, client)
                harness.leave(row, client)
                if damage:
                    _damage(harness, checkpoint)
            harness.finish(row, name, client)

    return scenario


def _strike(harness: Harness, row: Row, client: Client, checkpoint: Path, number: int) -> bool:
    """Sends a signal to a client, mostly when it has got on a little; whether it was in time."""
    before = progress(checkpoint)
    if number != signal.SIGKILL or harness.random.random() > 0.2:
        client.wait_for(lambda: progress(checkpoint) != before)
    harness.pause(0.0, 3.0, client)
    if client.ended:
        row.late += client.process.returncode == 0
        return False
    row.kills += kill(client.process.pid, number)
    return True


def _check_farewell(row: Row, client: Client) -> None:
    """A client that was told to end does so soon, with a valid result."""
    if not wait_until(lambda: client.ended, ENDING):
        row.trouble.append(f"still there {ENDING:g} s after a signal")
        client.process.kill()
        return
    status, (output, errors) = client.wait(), client.said
    if status < 0 and output.endswith("}\n"):  # its result was out already
        row.kills, row.late = row.kills - 1, row.late + 1
    elif status != 0 or content(output)["status"] not in ("interrupted", "max_calls"):
        row.trouble.append(f"after a signal: exit status {status}, {output[-100:]!r}, {errors[-300:]!r}")


def _damage(harness: Harness, checkpoint: Path) -> None:
    """Cuts a file of a checkpoint off, or overwrites a part of it."""
    files = [file for file in checkpoint.parent.iterdir() if file.stat().st_size]
    if files:
        file, rng = harness.random.choice(files), harness.random
        data = bytearray(file.read_bytes())
        place = rng.randrange(len(data))
        if rng.random() < 0.5:
            del data[place:]
        else:
            data[place : place + 100] = rng.randbytes(len(data[place : place + 100]))
        file.write_bytes(data)


def break_simulator(broken: str, message: str, **options: Any) -> Callable[[Harness, Row, int], None]:
    """A simulator hangs or eats memory: it is named, and what was done before is not done again when it is mended."""

    def scenario(harness: Harness, row: Row, kills: int) -> None:
        for _ in range(kills):
            checkpoint = harness.checkpoint()
            client = harness.client("python", broken, workers=2, checkpoint=str(checkpoint), **options)
            status, (_, errors) = client.wait(), client.said
            row.kills += 1
            if status != NAMED or message not in errors or "seed 0, chunk" not in errors:
                row.trouble.append(f"exit status {status}: {errors[-300:]!r}")
            harness.leave(row, client)
            harness.finish(row, "python", harness.client("python", workers=2, checkpoint=str(checkpoint)))

    return scenario


SCENARIOS: dict[str, Callable[[Harness, Row, int], None]] = {
    "workers on this machine": kill_workers("python", "local"),
    "workers of a cluster": kill_workers("python", "cluster"),
    "workers with their nannies": kill_workers("python", "nannies"),
    "the scheduler": kill_scheduler,
    "client, threads": kill_client("compiled", workers=2),
    "client, processes": kill_client("python", workers=2),
    "client, one worker": kill_client("python"),
    "client, cluster": kill_client("python", workers=None),
    "client, a search": kill_client("search"),
    "client, around a reference": kill_client("reference", workers=2),
    "client, checkpoint damaged": kill_client("python", damage=True),
    "SIGTERM, threads": kill_client("compiled", signal.SIGTERM, workers=2),
    "SIGINT, processes": kill_client("python", signal.SIGINT, workers=2),
    "SIGINT, a search": kill_client("search", signal.SIGINT),
    "a simulator hangs": break_simulator("hangs", "took longer than chunk_seconds=5 s", chunk_seconds=5.0),
    "a simulator eats memory": break_simulator("eats", "needs more memory", worker_memory=1_000_000_000),
}


@contextmanager
def harness(seed: int, size: float = 1.0) -> Iterator[Harness]:
    """A harness with a folder of its own, which leaves nothing behind."""
    with (
        tempfile.TemporaryDirectory(prefix="smoothplan-faults-", ignore_cleanup_errors=True) as folder,
        ExitStack() as stack,
    ):
        yield Harness(seed, Path(folder), size, stack)


def run(found: Harness, scenario: str, kills: int) -> Row:
    """Runs a scenario with a number of kills."""
    row = Row(scenario)
    SCENARIOS[scenario](found, row, kills)
    return row


def line(row: Row) -> str:
    """A row of the table, with its troubles below."""
    counts = [f"{head} {round(value):,}" for head, value in vars(row).items() if head not in ("scenario", "trouble")]
    return f"{row.scenario:<28}" + ", ".join(counts) + "".join(f"\n    {text}" for text in row.trouble)


def main() -> int:
    """Prints the table; status 1 on any difference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=3, help="in every scenario")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    parser.add_argument("--size", type=float, default=1.0, help="of the runs")
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        return _child(**options.child)
    print(f"seed {options.seed}", flush=True)
    rows = []
    with harness(options.seed, options.size) as found:
        for name in filter(lambda name: options.only in name, SCENARIOS):
            rows.append(run(found, name, options.kills))
            print(line(rows[-1]), flush=True)
    good = all(row.good for row in rows)
    print(f"{sum(row.kills for row in rows)} kills: {'all equal' if good else 'DIFFERENT'}")
    return 0 if good else 1


def _child(**options: Any) -> int:
    """A client: plans, and prints what it has."""
    # A shell that starts a job in the background has it ignore interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        print(go(**options).to_json())
    except (sp.ClusterError, sp.CheckpointError, sp.SimulatorError) as error:
        print(error, file=sys.stderr)
        return {sp.ClusterError: GONE, sp.CheckpointError: REFUSED, sp.SimulatorError: NAMED}[type(error)]
    return 0


if __name__ == "__main__":
    sys.exit(main())
