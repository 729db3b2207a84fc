"""Who does the work of a run: nobody else, threads, processes, or a cluster."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, get_args

from smoothplan import arguments
from smoothplan.models.base import GenerativeModel
from smoothplan.models.jit import JitModel
from smoothplan.models.tabular import TabularModel
from smoothplan.running.work import Work
from smoothplan.running.workers import Pool, ThreadPool

PoolName = Literal["auto", "threads", "processes"]


@dataclass(frozen=True, eq=False)
class Terms:
    """Who does the work of a run.

    Args:
        workers: how many at a time, on this machine.
        pool: "threads", which suit compiled engines; "processes", which contain whatever a simulator in Python does;
            "auto" for what suits the engine.
        cluster: "local", the address of a Dask scheduler, or a Dask client.
        simulator_timeout: seconds that one call of the model's step may take. It needs processes.
        worker_memory: bytes that a worker process may grow by; a fair part of the machine's memory by default.
    """

    workers: int = 1
    pool: PoolName = "auto"
    cluster: Any = None
    simulator_timeout: float | None = None
    worker_memory: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "workers", arguments.whole("workers", self.workers))
        if self.pool not in get_args(PoolName):
            raise ValueError(f"pool must be auto, threads or processes, got {self.pool!r}")
        if self.simulator_timeout is not None:
            arguments.positive("simulator_timeout", self.simulator_timeout)
            if self.pool == "threads":
                raise ValueError("simulator_timeout needs pool='processes': a thread cannot be ended, got 'threads'")
        if self.worker_memory is not None:
            object.__setattr__(self, "worker_memory", arguments.whole("worker_memory", self.worker_memory))

    @property
    def contained(self) -> bool:
        """Whether a simulator must not run in the process that asks."""
        return self.simulator_timeout is not None or self.pool == "processes"

    def model(self, model: GenerativeModel, seed: int) -> AbstractContextManager[GenerativeModel]:
        """The model for those who call it themselves, in the process that asks."""
        if not self.contained or isinstance(model, TabularModel | JitModel):
            return nullcontext(model)
        from smoothplan.running.stepping import ContainedModel

        return ContainedModel(model, seed, self.simulator_timeout, self.worker_memory)

    def hire(self, work: Work) -> Pool | None:
        """Those who do this work, and all that comes after it; None for nobody but the one who asks."""
        if self.workers == 1 and self.cluster is None and not self.contained:
            return None
        timeout, memory = self.simulator_timeout, self.worker_memory
        contained = self.contained or not (work.compiled or self.pool == "threads")
        # Both are imported where they are needed: Dask may not be there, and processes are seldom wanted.
        if self.cluster is not None:
            from smoothplan.running.cluster import ClusterPool

            return ClusterPool(self.cluster, self.workers, contained=contained, timeout=timeout, memory=memory)
        if contained:
            from smoothplan.running.processes import ProcessPool

            return ProcessPool(self.workers, timeout, memory)
        return ThreadPool(self.workers)
