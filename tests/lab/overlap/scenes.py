"""The scenes of the overlaps: what stands there, and who does what to it; one for each thing beside the walk."""

from tests.lab.overlap.batches import BATCHES
from tests.lab.overlap.ends import ENDS
from tests.lab.overlap.limits import LIMITS
from tests.lab.overlap.plans import PLANS
from tests.lab.overlap.reservations import RESERVATIONS
from tests.lab.overlap.schedules import SCHEDULES
from tests.lab.overlap.states import STATES
from tests.lab.overlap.steps import STEPS

SCENES = {
    "batches": BATCHES, "reservations": RESERVATIONS, "schedules": SCHEDULES, "limits": LIMITS, "steps": STEPS,
    "states": STATES, "plans": PLANS, "ends": ENDS,
}  # fmt: skip
