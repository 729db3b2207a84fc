"""Models: the simulators that planners call. A zoo of known problems, and adapters for your own simulator."""

from smoothplan.models.derived import discretise, finite_horizon
from smoothplan.models.gymnasium import from_gymnasium, state_of
from smoothplan.models.jax import JaxModel, from_gymnax
from smoothplan.models.model import (
    Box,
    Call,
    Declarations,
    GenerativeModel,
    ModelError,
    Oracle,
    SimulatorError,
    Transition,
    reproduce,
)
from smoothplan.models.tabular import TabularModel
from smoothplan.models.testing import ModelReport
from smoothplan.models.vector import JitModel, VectorModel
from smoothplan.models.zoo import (
    cart_pole,
    chain,
    frozen_lake,
    garnet,
    inventory,
    mountain_car,
    river_swim,
    sailing,
    sysadmin,
    two_room,
)

__all__ = [
    "Box", "Call", "Declarations", "GenerativeModel", "JaxModel", "JitModel", "ModelError", "ModelReport", "Oracle",
    "SimulatorError", "TabularModel", "Transition", "VectorModel", "cart_pole", "chain", "discretise", "finite_horizon",
    "from_gymnasium", "from_gymnax", "frozen_lake", "garnet", "inventory", "mountain_car", "reproduce", "river_swim",
    "sailing", "state_of", "sysadmin", "two_room",
]  # fmt: skip
