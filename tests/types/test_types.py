"""What must type-check does, and what must not does not: mypy runs on small programs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PREAMBLE = """
from __future__ import annotations
import cgstate
from collections.abc import Callable, Hashable, Mapping

def speak(codes: str, *, loud: bool = False) -> bytes: ...

class Speak(cgstate.Routine[[str], bytes, int, list[int]]):
    def eager_call(self, codes: str) -> bytes: return b""
    def resolve_runtime(
        self, args: tuple[object, ...], kwargs: Mapping[str, object], available: frozenset[int]
    ) -> cgstate.Resolution[int]:
        return cgstate.Resolution(1, None)
    def allocate_buffers(self, descriptor: int) -> list[int]: return []
    def forward_for_capture(self, descriptor: int, buffers: list[int]) -> object: return None
    def copy_runtime_inputs(self, descriptor: int, buffers: list[int], codes: str) -> None: ...
    def output_after_replay(self, descriptor: int, buffers: list[int], output: object, codes: str) -> bytes:
        return b""

component = cgstate.Component("speak", Speak(), [1, 2])
leased = cgstate.LeasedComponent("speak", Speak(), [1, 2])
bucketed = cgstate.Component("b", cgstate.BucketedRoutine(speak, lambda n: ("x",)), [1])
manager = cgstate.GraphManager("sim")
"""

RIGHT = {
    "a component has its routine's signature and result": "answer: bytes = component('codes')",
    "a leased component wraps the result": "answer: cgstate.LeasedOutput[bytes] = leased('codes')\nvalue: bytes = answer.value",
    "a bucketed module keeps its keyword arguments": "answer: bytes = bucketed('codes', loud=True)",
    "an entry takes a descriptor by value": "manager.entry('decode', (1, 'lora')).replay()",
    "a transaction yields itself": (
        "with manager.transaction() as tx:\n    tx.capture(manager.entry('a', 1), lambda warmup: lambda: None)"
    ),
}

WRONG = {
    "a wrong argument": ("component(3)", "arg-type"),
    "a missing argument": ("component()", "call-arg"),
    "an unknown keyword": ("bucketed('codes', quiet=True)", "call-arg"),
    "a result of another type": ("answer: str = component('codes')", "assignment"),
    "a leased output used as the output": ("answer: bytes = leased('codes')", "assignment"),
    "a descriptor of another type": ("cgstate.Component('s', Speak(), ['one'])", "misc"),
    "a routine without its abstract methods": ("class Half(cgstate.Routine[[str], bytes, int, int]): ...\nHalf()", "abstract"),
    "a make function that takes no warmup": (
        "with manager.transaction() as tx:\n    tx.capture(manager.entry('a', 1), lambda: None)",
        "misc",
    ),
    "an unhashable descriptor": ("manager.entry('a', [1])", "arg-type"),
    "a mode by another name": ("cgstate.Component('s', Speak(), [1], capture_mode='LAZY')", "arg-type"),
}


def check(tmp_path: Path, programs: dict[str, str]) -> str:
    """What mypy says of all programs at once: starting it costs more than running it."""
    for index, body in enumerate(programs.values()):
        (tmp_path / f"program_{index}.py").write_text(PREAMBLE + body + "\n")
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "mypy.ini"), "--no-pretty", "--hide-error-context"]
    command += ["--allow-untyped-globals", "--disable-error-code=empty-body", *map(str, sorted(tmp_path.glob("*.py")))]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False).stdout


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> str:
    return check(tmp_path_factory.mktemp("right"), RIGHT)


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> str:
    return check(tmp_path_factory.mktemp("wrong"), {name: body for name, (body, _) in WRONG.items()})


def test_what_is_right_type_checks(right: str) -> None:
    assert "Success" in right, right


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_does_not(wrong: str, name: str) -> None:
    index, code = list(WRONG).index(name), WRONG[name][1]
    found = [line for line in wrong.splitlines() if f"program_{index}.py" in line and f"[{code}]" in line]
    assert found, wrong
