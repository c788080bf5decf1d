"""A process that runs one fact program on the GPU: some programs ruin the device, the framework or the process.

python -m cgstate.testing.fidelity.child P1 OUTCOME_FILE
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from pathlib import Path

from cgstate.testing.fidelity.facts import FACTS


def main(fact: str, out: str) -> None:
    """Run the program and write what was seen. Never returns: torch may abort in destructors at the end of the process."""
    warnings.simplefilter("ignore")  # torch warns of what is done on purpose here
    status = 1
    try:
        from cgstate.testing.fidelity.bench_cuda import CudaBench

        seen = FACTS[fact].run(CudaBench())
        Path(out).write_text(json.dumps([[each.label, each.value, each.within] for each in seen]))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
