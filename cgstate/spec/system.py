"""The system: what the runtime does in one piece, composed of the tables' rows, as data.

Theory of operation. Under the device's lock the runtime makes several machines step together: a commit binds every entry of a
transaction, then the components, then the manager. An `Action` is such a piece: conditions on the whole system, then statements
that let machines step (`Do`) or note what the tables leave to others (`Assign`). A step that its table refuses makes the whole
action impossible, so every condition of the lifecycle still stands in the tables alone. What no table speaks of, but behaviour
depends on, is modelled beside them (`cells`). The environment (device, other threads, failures, memory that moves) is made of
actions as well.

The TLA+ module, the walker and the tours on the real runtime all derive from the actions here.
"""

from __future__ import annotations

from cgstate.spec.endings import ENDINGS
from cgstate.spec.environment import ENVIRONMENT
from cgstate.spec.leases import LEASES
from cgstate.spec.retiring import RETIREMENTS
from cgstate.spec.transactions import TRANSACTIONS

ACTIONS = (*TRANSACTIONS, *LEASES, *RETIREMENTS, *ENDINGS, *ENVIRONMENT)
"""Everything that can happen."""
