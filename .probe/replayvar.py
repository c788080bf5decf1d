import inspect, statistics, time, gc, torch, cgstate
from cgstate.backends.cuda import CudaBackend
import cgstate.runtime.hotpath as H
m=cgstate.GraphManager(CudaBackend())
static=torch.zeros(64,device='cuda')
def chain(n):
    def make(w):
        def body():
            for _ in range(n): static.add_(1.0)
            return static
        return body
    return make
e=m.entry('c',1000)
with m.transaction() as tx: tx.capture(e,chain(1000))
raw=torch.cuda.CUDAGraph(); s=torch.cuda.Stream()
with torch.cuda.graph(raw,stream=s): chain(1000)(False)()
craw=super(torch.cuda.CUDAGraph,raw).replay
src=inspect.getsource(H.replay)
def variant(*subs):
    t=src
    for a,b in subs:
        assert a in t,a
        t=t.replace(a,b)
    ns=dict(H.__dict__); exec("from __future__ import annotations\n"+t,ns)
    f=ns['replay']
    return lambda: f(e)
V={'raw':raw.replay,'craw':craw,'guarded':e.replay,'same':variant(),
'no lock':variant(('        self.take_lock()\n',''),('            self.give_lock()\n','            pass\n')),
'no handle':variant(('                and self.current_handle(self.index) == turn.last_handle\n','')),
'no guards':variant(('                and self.manager.serving\n',''),('                and self.component.resident\n',''),('                and self.noted == self.component.epoch\n','')),
'no hits':variant(('                self.hits += 1\n','')),
'no latest':variant(('                turn.latest = None  # what was handed out expires even if the launch raises: it may have begun\n','')),
}
for calls,rounds in ((8,150),(2,250)):
    S={k:[] for k in V}; gc.disable(); order=list(V.items())
    for r in range(rounds):
        for k,f in order:
            torch.cuda.synchronize()
            t0=time.thread_time_ns()
            for _ in range(calls): f()
            S[k].append((time.thread_time_ns()-t0)/calls)
        order.append(order.pop(0))
    base=S['raw']; q=sorted(range(rounds),key=base.__getitem__)[:rounds//4]
    print('calls',calls)
    for k in V: print(f"{k:10} med {statistics.median(S[k]):8.0f} p05 {sorted(S[k])[rounds//20]:8.0f} added {statistics.median([S[k][i]-base[i] for i in q]):7.0f} ratio {statistics.median([S[k][i]/base[i] for i in range(rounds)]):.3f}")
