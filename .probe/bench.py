import time, torch, functools, threading
from cgstate.backends.base import CaptureErrorMode
from cgstate.backends.cuda import CudaBackend
from cgstate.backends.undo import UndoLog
b = CudaBackend(); M = 1 << 20
pool, s = b.new_pool(), b.new_stream(exclusive=True)
x = torch.ones(64, 64, device='cuda'); torch.cuda.synchronize()
def t(name, f, n=2000):
    for _ in range(n // 10): f()
    torch.cuda.synchronize()
    best = []
    for _ in range(5):
        a = time.perf_counter_ns()
        for _ in range(n): f()
        best.append((time.perf_counter_ns() - a) / n)
        torch.cuda.synchronize()
    print(f'{name:44s} median {sorted(best)[2]:10.0f} ns', flush=True)
def ons():
    with b.on_stream(s): pass
def rec(body, mode=CaptureErrorMode.thread_local):
    u = UndoLog(); b.keep_generator(u)
    try:
        g = b.open_capture(pool, s, mode, u); o = body(); b.close_capture(g)
    except BaseException: u.fail(); assert not u.errors, u.errors; raise
    u.succeed(); return g, o
a = time.perf_counter_ns(); b.prime_workspaces(pool, s); print('prime first ms', (time.perf_counter_ns() - a) / 1e6)
t('prime again', lambda: b.prime_workspaces(pool, s), 100)
a = time.perf_counter_ns(); g, y = rec(lambda: x @ x + 1); print('first capture (with anchor) ms', (time.perf_counter_ns() - a) / 1e6)
raw = torch.cuda.CUDAGraph()
with torch.cuda.graph(raw): z = x @ x + 1
t('raw.replay', raw.replay, 3000); t('graph.replay', g.replay, 3000); t('raw.replay', raw.replay, 3000); t('graph.replay', g.replay, 3000)
t('current_handle', b.current_handle, 100000)
ch = b.current_handle
t('capturing', b.capturing, 50000); t('stream.capturing', s.capturing, 20000); t('current_stream', b.current_stream, 5000)
t('grad_enabled', b.grad_enabled, 50000); t('requires_grad((x,),{})', lambda: b.requires_grad(((x,), {})), 20000)
t('x.clone', x.clone); t('backend.clone(x)', lambda: b.clone(x)); t('backend.clone((x,))', lambda: b.clone((x,)))
t('record event', s.record, 3000); e = s.record(); t('event.done', e.done, 20000); t('wait', lambda: s.wait(e), 3000)
t('reserved_bytes', pool.reserved_bytes, 300); t('footprint', b.footprint, 100); t('generator_mark', b.generator_mark, 20000); t('allocated_bytes', b.allocated_bytes, 500)
t('lost()', b.lost, 200); t('on_stream', ons, 500)
def one():
    g, o = rec(lambda: x + 1); g.destroy()
t('capture+destroy, 1 node', one, 100)
def bad():
    try: rec(lambda: (x + 1).sum().item())
    except RuntimeError: pass
t('item capture and its undo', bad, 50)
def bad2():
    try: rec(lambda: 1 / 0)
    except ZeroDivisionError: pass
t('raising capture and its undo', bad2, 50)
def raw1():
    st = torch.cuda.Stream()
    with torch.cuda.stream(st):
        q = torch.cuda.CUDAGraph(); q.capture_begin(pool=pool.id, capture_error_mode='thread_local'); o = x + 1; q.capture_end()
    q.reset()
t('raw capture_begin/end/reset', raw1, 100)
p0 = torch.cuda.mem_get_info()[0]; ps = [b.new_pool() for _ in range(50)]
for p in ps:
    u = UndoLog(); g2 = b.open_capture(p, s, CaptureErrorMode.thread_local, u); x + 1; b.close_capture(g2); u.succeed(); g2.destroy()
print('50 anchored pools, driver+segment KiB each', (p0 - torch.cuda.mem_get_info()[0]) / 1024 / 50, 'segments', sum(sum(p.reserved_bytes().values()) for p in ps) / 1024 / 50)
