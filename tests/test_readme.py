"""What README says is what the project does."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest

import cgstate
from benchmarks import readme
from cgstate.backends.sim import SimBackend, kernels

TEXT = readme.README.read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_the_generated_parts_are_what_the_generator_writes() -> None:
    assert readme.source(TEXT) == TEXT


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_name_of_the_package_in_an_example_is_public(example: str) -> None:
    used = {
        node.attr
        for node in ast.walk(ast.parse(example))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "cgstate"
    }
    assert used <= set(cgstate.__all__)


def test_the_runner_example_runs_on_the_simulator() -> None:
    (runner,) = (example for example in EXAMPLES if "entry.lease" in example)
    backend = SimBackend()
    sim = backend.sim
    weight, static_input, read = sim.rand(4, 4), sim.rand(2, 4), []
    manager = cgstate.GraphManager(backend, check=True)
    component = cgstate.Component(
        "c", cgstate.BucketedRoutine(lambda x: x, lambda n: (sim.zeros(n),)), [1], dependencies=["kv_cache"]
    )
    manager.prepare([component])
    names: dict[str, Any] = {
        "manager": manager,
        "batch": 2,
        "lora": 0,
        "static_input": static_input,
        "model": lambda x: kernels.matmul(x, weight),
        "use": lambda output: read.append(output.tolist()),
    }
    exec(compile(runner, "README.md", "exec"), names)
    assert read == [kernels.matmul(static_input, weight).tolist()]
    with pytest.raises(cgstate.IllegalTransition):
        names["entry"].replay()  # the last line has retired it
    manager.close()


def test_every_file_that_it_shows_or_names_is_there() -> None:
    named = re.findall(r'(?:src|srcset)="([^"]+)"|\]\(([^)#:]+)\)', TEXT)
    assert {"docs/diagrams/entry-light.svg", "docs/diagrams/entry-dark.svg"} <= {shown for shown, _ in named}
    assert [path for pair in named for path in pair if path and not (readme.ROOT / path).exists()] == []


def test_the_simulator_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = (example for example in EXAMPLES if "kernels" in example)
    exec(compile(example, "README.md", "exec"), {})
    assert "1 calls, 100.0% by graph" in capsys.readouterr().out


@pytest.mark.torch
def test_the_torch_example_runs_on_the_simulator() -> None:
    pytest.importorskip("torch")
    (example,) = (example for example in EXAMPLES if "SimBackend" in example and "torch" in example)
    exec(compile(example, "README.md", "exec"), {})


def test_the_memory_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = (example for example in EXAMPLES if "budget_bytes" in example)
    backend = SimBackend()
    weight = backend.sim.rand(4, 4)
    routine = cgstate.BucketedRoutine(lambda x: kernels.matmul(x, weight), lambda size: (backend.sim.zeros(size, 4),))
    names: dict[str, Any] = {"cgstate": cgstate, "backend": backend, "routine": routine}
    exec(compile(example, "README.md", "exec"), names)
    assert "'components'" in capsys.readouterr().out
    assert names["manager"].stats().components["decoder"].captures == 4  # two, and two again after the memory moved
    names["manager"].close()


def test_the_example_with_a_break_runs() -> None:
    (example,) = (example for example in EXAMPLES if "cgstate.Break" in example)
    backend = SimBackend()
    sim = backend.sim
    static_input, weight = sim.rand(4, 4), sim.rand(4, 4)
    names: dict[str, Any] = {
        "cgstate": cgstate,
        "manager": cgstate.GraphManager(backend, check=True),
        "static_input": static_input,
        "encode": lambda x: kernels.matmul(x, weight),
        "attention": kernels.softmax,
        "decode": kernels.tanh,
        "empty_like": lambda x: sim.empty(*x.shape),
    }
    exec(compile(example, "README.md", "exec"), names)
    assert names["output"].tolist() == kernels.tanh(kernels.softmax(kernels.matmul(static_input, weight))).tolist()
    names["output"] = None
    names["manager"].close()


def test_the_two_commands_are_the_makefiles() -> None:
    makefile = (readme.ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make ([a-z-]+)", TEXT):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
