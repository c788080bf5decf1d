"""What may end the process, or outlive the device: each in a process of its own, which has to end well."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")

import torch

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

SETUP = """
import gc, threading, torch
from cgstate.backends.base import CaptureErrorMode
from cgstate.backends.cuda import CudaBackend
from cgstate.backends.undo import UndoLog
from cgstate.lifecycle.states import FailureKind

MIB = 1 << 20
backend = CudaBackend()
pool, stream = backend.new_pool(), backend.new_stream(exclusive=True)
x = torch.ones(8 * MIB, device="cuda")
torch.mm(x.view(-1, 1024), torch.ones(1024, 1, device="cuda"))
torch.cuda.synchronize()

def record(body, pool=pool):
    undo = UndoLog()
    try:
        graph = backend.open_capture(pool, stream, CaptureErrorMode.thread_local, undo)
        output = body()
        backend.close_capture(graph)
    except BaseException as error:
        undo.fail()
        error.undo = undo
        raise
    undo.succeed()
    return graph, output

def lose_the_device():
    torch.zeros(4, device="cuda")[torch.full((1,), 9, device="cuda")]
    try:
        torch.cuda.current_stream().synchronize()
    except torch.AcceleratorError as error:
        return error

backend.prime_workspaces(pool, stream)
graph, y = record(lambda: x * 2)
graph.replay()
assert y[0].item() == 2
"""

SCRIPTS = {
    "exit_with_everything_alive": """
    """,
    "lost_device": """
        error = lose_the_device()
        assert backend.failure_kind(error) is FailureKind.DEVICE
        assert backend.lost() is not None
        try:
            graph.replay()
        except RuntimeError as error:
            assert backend.failure_kind(error) is FailureKind.DEVICE
        else:
            raise SystemExit("a lost device replays")
        graph.destroy()
        pool.drop()
        stream.close()
        assert backend.flush() == 0
        del graph, pool, y, x
        gc.collect()
    """,
    "lost_device_everything_alive": """
        lose_the_device()
        assert backend.lost() is not None
    """,
    "lost_inside_a_capture": """
        def body():
            z = x * 3
            thread = threading.Thread(target=lose_the_device)
            thread.start()
            thread.join()
            return z + 1
        try:
            record(body)
        except RuntimeError as error:
            kind = backend.failure_kind(error)
            print("kind", kind, "undo", error.undo.errors)
        else:
            raise SystemExit("a lost device captures")
        assert backend.lost() is not None
        assert backend.current_handle(backend.index) == 0
        graph.destroy()
        pool.drop()
        assert backend.flush() == 0
    """,
    "somebody_s_failed_capture_stays_open": """
        # Outside of us, and never repaired: from now on the destructor of any MemPool would abort.
        foreign = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(foreign):
                x.sum().item()
        except torch.AcceleratorError:
            torch.cuda.set_stream(torch.cuda.default_stream())
        before = torch.cuda.memory_reserved()
        graph.destroy()
        del y
        pool.drop()
        assert backend.clear_workspaces()
        returned = backend.flush()
        assert returned >= 32 * MIB, returned
        assert pool.reserved_bytes() == {}
        # And our next capture heals the generator, as any does.
        second = backend.new_pool()
        graph, y = record(lambda: x * 2 + torch.randn(1, device="cuda"), second)
        graph.replay()
        torch.randn(4, device="cuda")
    """,
    "drop_while_another_thread_routes": """
        graph.destroy()
        del y
        begun, done = threading.Event(), threading.Event()
        def other():
            with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
                torch.ones(MIB, device="cuda")
                begun.set()
                done.wait()
        thread = threading.Thread(target=other)
        thread.start()
        begun.wait()
        pool.drop()
        assert backend.clear_workspaces()
        assert backend.flush() >= 32 * MIB
        done.set()
        thread.join()
        assert backend.lost() is None
    """,
    "first_cublas_inside_a_capture": """
        def body():
            x.view(-1, 1024)[:64] @ x.view(-1, 1024)[:64].T
        def fresh_thread():
            try:
                record(body)
            except RuntimeError as error:
                kinds.append(backend.failure_kind(error))
                assert error.undo.errors == []
        kinds = []
        thread = threading.Thread(target=fresh_thread)
        thread.start()
        thread.join()
        print("kinds", kinds)
        assert kinds in ([], [FailureKind.REJECTED])
        torch.randn(4, device="cuda")
        again, z = record(lambda: x * 3)
        again.replay()
        assert z[0].item() == 3
        graph.replay()
        assert y[0].item() == 2
    """,
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_process_ends_well(name: str) -> None:
    code = SETUP + textwrap.dedent(SCRIPTS[name]) + "\nprint('reached the end')\n"
    run = subprocess.run([sys.executable, "-X", "faulthandler", "-c", code], capture_output=True, text=True, timeout=120)
    print(run.stdout)
    assert run.returncode == 0, run.stderr[-3000:]
    assert "reached the end" in run.stdout
