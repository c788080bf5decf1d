import time,threading
import cgstate, torch
from cgstate.backends.cuda import CudaBackend
from cgstate.lifecycle.steps import is_ready, lend, take_back
m=cgstate.GraphManager(CudaBackend()); e=m.entry('a',1); x=torch.zeros(4,device='cuda')
with m.transaction() as tx: tx.capture(e, lambda w: lambda: x.add_(1))
e.replay(); h=e.current_handle
def t(f,n=20000):
    r=[]
    for _ in range(15):
        s=time.perf_counter_ns()
        for _ in range(n): f()
        r.append((time.perf_counter_ns()-s)/n)
    return round(min(r),1)
def lease():
    with e.lease(): pass
l=threading.Lock(); a=l.acquire; b=l.release
def w():
    with l: pass
def w2():
    a(); b()
noop=lambda: None
L=e.lease()
def lease2():
    with L: pass
c=e.component
def lt():
    lend(e,c); take_back(e,c)
class N:
    __slots__=()
    def __enter__(self): return self
    def __exit__(self,a,b,c): return
n=N()
def wn():
    with n: pass
print('lease',t(lease),'reused',t(lease2),'create',t(e.lease),'with',t(w),'acq/rel',t(w2),'noop',t(noop),'handle',t(h),'ready',t(lambda: is_ready(e)),'lend+back',t(lt),'withpy',t(wn))
e.launch=noop
print('replay noop launch',t(e.replay))
y=torch.zeros(8,64,device='cuda')
r=cgstate.BucketedRoutine(lambda z: z*2, lambda k:(torch.zeros(k,64,device='cuda'),))
comp=cgstate.Component('c',r,[8]); m2=cgstate.GraphManager(m.backend); m2.prepare([comp]); m2.capture_and_bind(progress=False)
with torch.no_grad():
    comp(y)
    call=comp._caller; rec=call.record; ent=rec.entries[8]
    print('resolve',t(lambda: r.resolve_runtime((y,),{},rec.available)),'size',t(lambda:y.size(0)),'grad',t(call._grad_enabled),'tid',t(call._thread_id))
    out=ent.output
    print('output',t(lambda: r.output_after_replay(8,ent.buffers,out,y)))
    ent.launch=noop
    class F:
        pass
    r.copy_runtime_inputs=lambda *a: None
    call._backend=type('B',(),{'clone':staticmethod(lambda z:z),'requires_grad':None})()
    print('call, no torch work',t(lambda: comp(y)))
