import torch, cgstate
from cgstate.backends.cuda import CudaBackend
import cgstate.backends.cuda.workspaces as W
import cgstate.runtime.reclaimer as R
orig=R.Reclaimer._workspaces_are_ours
def ours(self):
    r=orig(self); print('   ours?',r, [ (p.name,p.state.value,p.id,p.bytes()) for p in self.books.pools]); return r
R.Reclaimer._workspaces_are_ours=ours
b=CudaBackend()
ow=b.clear_workspaces
for iso in ('shared','per_entry'):
    print('==',iso, b.footprint().pools)
    m=cgstate.GraphManager(b, isolation=iso)
    x=torch.zeros(256,device='cuda')
    e=m.entry('s',1)
    with m.transaction() as tx: tx.capture(e, lambda w: lambda: x*2+1)
    print('bound', b.footprint().pools, m.memory())
    f=m.entry('v',1)
    def bad(w):
        def g():
            if not w: raise ValueError
            return x+1
        return g
    try:
        with m.transaction() as tx: tx.capture(f,bad)
    except cgstate.CaptureFailed as c: print(c)
    print('failed', b.footprint().pools, m.memory())
    m.close()
    print('closed', b.footprint().pools, m.memory(), m._books.pools)
    print(b.clear_workspaces(), b.flush(), b.footprint().pools)
