"""A process that plays programs on the GPU, one after the other: a program a line comes in, its outcome goes out.

python -m cgstate.testing.fidelity.programs.child
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
import warnings

from cgstate.testing.fidelity.programs.play import play
from cgstate.testing.fidelity.programs.program import program_from_json, to_json


def main() -> None:
    """Play until no line comes any more. Never returns: torch may abort in destructors at the end of the process."""
    warnings.simplefilter("ignore")  # torch warns of what is done on purpose here
    logging.getLogger("cgstate").setLevel(logging.CRITICAL)  # and so does the runtime
    status = 1
    try:
        from cgstate.testing.fidelity.bench_cuda import CudaBench

        bench = CudaBench()
        for line in sys.stdin:
            print(json.dumps(to_json(play(program_from_json(json.loads(line)), bench))), flush=True)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
