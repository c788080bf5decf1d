"""A process on the GPU, for programs that may ruin the device, the framework or the process: a line asks, a line answers.

python -m cgstate.testing.fidelity.child fact
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from cgstate.testing.fidelity.bench import Bench
from cgstate.testing.fidelity.facts import FACTS
from cgstate.testing.fidelity.programs.play import play
from cgstate.testing.fidelity.programs.program import program_from_json, to_json


def _fact(id_: Any, bench: Bench[Any]) -> object:
    """What the program of a fact has seen."""
    return [[each.label, each.value, each.within] for each in FACTS[id_].run(bench)]


def _program(drawn: Any, bench: Bench[Any]) -> object:
    """What a drawn program has come to."""
    return to_json(play(program_from_json(drawn), bench))


LIMIT_S = 90.0
"""Seconds that a process may take for its start, and for each answer."""

ANSWERS: Mapping[str, Callable[[Any, Bench[Any]], object]] = {"fact": _fact, "program": _program}
"""What may be asked, and how it is answered."""


def command(kind: str) -> list[str]:
    """What starts such a process."""
    return [sys.executable, "-X", "faulthandler", "-m", "cgstate.testing.fidelity.child", kind]


def _limit() -> None:
    """From now on the process has `LIMIT_S`; then each of its threads says where it stands, and it ends."""
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)


def main(kind: str) -> None:
    """Answer until no line comes any more. Never returns: torch may abort in destructors at the end of the process."""
    _limit()
    warnings.simplefilter("ignore")  # torch warns of what is done on purpose here
    logging.getLogger("cgstate").setLevel(logging.CRITICAL)  # and so does the runtime
    status = 1
    try:
        from cgstate.testing.fidelity.bench_cuda import CudaBench

        answer, bench = ANSWERS[kind], CudaBench()
        faulthandler.cancel_dump_traceback_later()
        for line in sys.stdin:
            _limit()
            print(json.dumps(answer(json.loads(line), bench)), flush=True)
            faulthandler.cancel_dump_traceback_later()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
