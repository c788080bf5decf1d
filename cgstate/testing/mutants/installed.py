"""Puts a mutant into the runtime: a planted fault is planted, a changed table becomes the steps that the runtime takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any
from unittest.mock import patch

from cgstate.lifecycle import generate, steps
from cgstate.testing.mutants.mutant import RuntimeMutant, TableMutant

__all__ = ["installed"]


@contextmanager
def installed(mutant: TableMutant | RuntimeMutant) -> Iterator[None]:
    """While entered, the runtime of this process is broken."""
    if isinstance(mutant, RuntimeMutant):
        with mutant.planting():
            yield
        return
    names: dict[str, Any] = {"__name__": f"{steps.__name__}_of_a_mutant"}
    exec(compile(generate.source(mutant.machines), f"<steps of {mutant.id}>", "exec"), names)
    names[mutant.machine.name.upper()] = mutant.machine  # what a refusal is explained by
    name = f"{mutant.machine.name.title()}Steps"
    right = getattr(steps, name)
    with ExitStack() as stack:
        stack.enter_context(patch.object(right, "machine", mutant.machine))
        for member, value in vars(names[name]).items():
            if isinstance(value, FunctionType):
                stack.enter_context(patch.object(right, member, value))
        yield
