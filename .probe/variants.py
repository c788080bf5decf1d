import inspect, statistics, time, gc, torch
import cgstate
from torch import nn
from cgstate.backends.cuda import CudaBackend
import cgstate.runtime.hotpath as H
SIZE=64
layers=nn.Sequential(*(nn.Linear(SIZE,SIZE) for _ in range(4))).cuda().requires_grad_(False)
routine=cgstate.BucketedRoutine(lambda x: layers(x), lambda n:(torch.zeros(n,SIZE,device='cuda'),))
comp=cgstate.Component('linears',routine,[8]); m=cgstate.GraphManager(CudaBackend()); m.prepare([comp]); m.capture_and_bind(progress=False)
static=torch.zeros(8,SIZE,device='cuda'); graph=torch.cuda.CUDAGraph()
torch.set_grad_enabled(False)
w=torch.cuda.Stream()
with torch.cuda.stream(w): layers(static)
torch.cuda.synchronize()
with torch.cuda.graph(graph,stream=w): output=layers(static)
x=torch.randn(8,SIZE,device='cuda')
def by_hand():
    static.copy_(x); graph.replay(); return output.clone()
comp(x)
call=comp.caller
args=(x,); kw={}
src=inspect.getsource(H.call)
def variant(*subs):
    s=src
    for a,b in subs:
        assert a in s,a
        s=s.replace(a,b)
    ns=dict(H.__dict__); exec("from __future__ import annotations\n"+s,ns)
    f=ns['call']
    return lambda: f(comp,x)
def trimmed(descriptor,buffers,value):
    size=value.shape[0]
    buffers.size=size
    if size==descriptor: buffers.tensors[0].copy_(value)
V={'by_hand':by_hand,'comp':lambda: comp(x),'same':variant(),
'no locks':variant(('    self.take_lock()\n',''),('        self.give_lock()\n','        pass\n')),
'no grad':variant(('if self.grad_enabled() and','if False and')),
'no tid':variant(('self.thread_id()','7')),
'no resolve':variant(('key, descriptor, exact = self.resolve(args, kwargs, record.available)','key = descriptor = 8; exact=True')),
'no checks':variant(('    if self.careful:\n        self.look_first(args, kwargs)\n',''),('        if self.point is not None:\n            self.point("copy")\n',''),('        if self.point is not None:\n            self.point("launch")\n',''),('        if self.ticks:\n            record.clock = entry.last_used = record.clock + 1\n',''),('    if self.summary_every and not record.clock % self.summary_every:\n        self.log_summary()\n','')),
}
V={k:v for k,v in V.items() if v}
samples={k:[] for k in V}
gc.disable(); order=list(V.items())
for r in range(400):
    for k,f in order:
        torch.cuda.synchronize()
        s=time.thread_time_ns()
        for _ in range(30): f()
        samples[k].append((time.thread_time_ns()-s)/30)
    order.append(order.pop(0))
base=samples['by_hand']
quiet=sorted(range(400),key=lambda i: base[i])[:100]
for k in V:
    d=[samples[k][i]-base[i] for i in quiet]
    print(f"{k:12} p05 {sorted(samples[k])[20]:9.0f}  added {statistics.median(d):7.0f}  ratio {statistics.median([samples[k][i]/base[i] for i in range(400)]):.3f}")
