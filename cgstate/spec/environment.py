"""What happens to the library: the device finishes or is lost, others capture."""

from __future__ import annotations

from cgstate.lifecycle.states import ManagerEvent
from cgstate.spec.cells import FALSE, POOLS, TRUE, gate_foreign, gate_free, not_lost, pool
from cgstate.spec.shared import ALL_DONE
from cgstate.spec.statements import Action, Assign, Do

ENVIRONMENT = (
    Action(
        "device_done",
        (("p", POOLS),),
        (pool("running"), not_lost),
        ALL_DONE,
        "The device finishes what was queued for a pool; a lost one finishes nothing.",
        progress=True,
    ),
    Action("lose_device", (), (), (Do("manager", ManagerEvent.device_lost),), "The context is lost."),
    Action(
        "foreign_capture",
        (),
        (gate_free,),
        (Assign(gate_free, FALSE), Assign(gate_foreign, TRUE)),
        "Another manager captures on the same device.",
    ),
    Action(
        "foreign_capture_ends",
        (),
        (gate_foreign,),
        (Assign(gate_free, TRUE), Assign(gate_foreign, FALSE)),
        "And is done.",
        progress=True,
    ),
)
