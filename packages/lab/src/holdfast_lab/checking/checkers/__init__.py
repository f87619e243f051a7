"""The checkers, one promise each. The docstring of a checker is its promise; `base.py` defines the interface."""

from .base import Checker, Violation
from .deadlocks import ProvenDeadlocks
from .delays import LockDelays
from .elections import OneLeader
from .events import BalancedEvents
from .exclusion import MutualExclusion
from .fences import GrowingFences
from .grants import SingleGrants
from .groups import AllOrNothing
from .keys import OneStartPerKey
from .leftovers import NothingLeft
from .local_passes import LocalPasses
from .losses import LossesReported
from .minimum_holds import MinimumHolds
from .order import FairOrder
from .outcomes import ExactOutcomes
from .periods import OncePerPeriod
from .progress import SteadyProgress
from .promptness import PromptGrants
from .renewals import TrueRenewals
from .revocations import RevocationsReceived
from .transfers import SingleAdoptions
from .waiters import DeadWaitersRemoved
from .waiting import BoundedWaiting
from .writes import FencedWrites

# In the order of gravity: a report begins with the first one that is broken.
CHECKERS: tuple[type[Checker], ...] = (
    MutualExclusion,
    OneStartPerKey,
    OncePerPeriod,
    LockDelays,
    MinimumHolds,
    SingleAdoptions,
    OneLeader,
    GrowingFences,
    FencedWrites,
    SingleGrants,
    AllOrNothing,
    LossesReported,
    TrueRenewals,
    ExactOutcomes,
    RevocationsReceived,
    ProvenDeadlocks,
    FairOrder,
    LocalPasses,
    BoundedWaiting,
    DeadWaitersRemoved,
    PromptGrants,
    SteadyProgress,
    NothingLeft,
    BalancedEvents,
)

__all__ = [
    "CHECKERS",
    "AllOrNothing",
    "BalancedEvents",
    "BoundedWaiting",
    "Checker",
    "DeadWaitersRemoved",
    "ExactOutcomes",
    "FairOrder",
    "FencedWrites",
    "GrowingFences",
    "LocalPasses",
    "LockDelays",
    "LossesReported",
    "MinimumHolds",
    "MutualExclusion",
    "NothingLeft",
    "OncePerPeriod",
    "OneLeader",
    "OneStartPerKey",
    "PromptGrants",
    "ProvenDeadlocks",
    "RevocationsReceived",
    "SingleAdoptions",
    "SingleGrants",
    "SteadyProgress",
    "TrueRenewals",
    "Violation",
]
