"""Plan with a simulator: which action now, and how sure, certified where possible.

- `decide` finds an action for any simulator; `Agent` decides again and again, `act` plays a Gymnasium environment.
- `plan` runs a planner at a state. Values: `DebiasedCruiser`, `SparseSampling`, `SmoothCruiser` and
  `SecondOrderSmoothCruiser`; at long horizons `ReferenceCruiser`. Actions: `OTGapE`, `MDPGapE`, `OTGapCruiser` and
  `UCT`. `forecast` bounds the simulator calls before a run, `plan_unregularised` plans for the unregularised value,
  `compare` runs planners side by side.
- Simulators: `VectorModel`, `JitModel`, `JaxModel`, `TabularModel`, and the adapters and known problems in `models`.
- Backups: `HardMax`, `LogSumExp`, `OptimalTransport` and `Tsallis`.
- `exact` solves tables, `curvature` has the constants of the theory, `references` approximates action values.
"""

from importlib.metadata import version

from smoothplan import chains as references
from smoothplan import models
from smoothplan.bounds.gape import MDPGapE, OTGapE
from smoothplan.bounds.uct import UCT
from smoothplan.chains.cruiser import ReferenceCruiser
from smoothplan.chains.fitted import FittedReference
from smoothplan.chains.grid import GridReference
from smoothplan.chains.reference import CriticReference, TabularReference
from smoothplan.chains.shared import SharedReference
from smoothplan.decide.agent import ActResult, Agent, Episode, act
from smoothplan.decide.compare import Comparison, compare
from smoothplan.decide.decide import Decision, decide
from smoothplan.decide.unregularised import plan_unregularised
from smoothplan.models import (
    Box,
    GenerativeModel,
    JaxModel,
    JitModel,
    ModelError,
    Oracle,
    SimulatorError,
    TabularModel,
    Transition,
    VectorModel,
    reproduce,
)
from smoothplan.recursive.gap_cruiser import OTGapCruiser
from smoothplan.recursive.planners import DebiasedCruiser, SecondOrderSmoothCruiser, SmoothCruiser, SparseSampling
from smoothplan.recursive.schedule import Forecast, forecast
from smoothplan.run.checkpoint import CheckpointError
from smoothplan.run.chunks import ClusterError
from smoothplan.run.plan import PlanResult, check_model, plan
from smoothplan.run.records import TooExpensiveError
from smoothplan.theory import backups, curvature, exact
from smoothplan.theory.backups import HardMax, LogSumExp, OptimalTransport, Tsallis
from smoothplan.theory.testing import BackupError, BackupReport, check_backup

__version__ = version("smoothplan")

__all__ = [
    "UCT", "ActResult", "Agent", "BackupError", "BackupReport", "Box", "CheckpointError", "ClusterError", "Comparison",
    "CriticReference", "DebiasedCruiser", "Decision", "Episode", "FittedReference", "Forecast", "GenerativeModel",
    "GridReference", "HardMax", "JaxModel", "JitModel", "LogSumExp", "MDPGapE", "ModelError", "OTGapCruiser", "OTGapE",
    "OptimalTransport", "Oracle", "PlanResult", "ReferenceCruiser", "SecondOrderSmoothCruiser", "SharedReference",
    "SimulatorError", "SmoothCruiser", "SparseSampling", "TabularModel", "TabularReference", "TooExpensiveError",
    "Transition", "Tsallis", "VectorModel", "act", "backups", "check_backup", "check_model", "compare", "curvature",
    "decide", "exact", "forecast", "models", "plan", "plan_unregularised", "references", "reproduce",
]  # fmt: skip
