"""The runtime: one manager over components, entries, pools and domains, stepping by the lifecycle's tables.

Reads `cgstate.lifecycle` and `cgstate.backends.base`, nothing above. One lock a device (`gate.CaptureGate.lock`) guards every
state; no user code runs under it.
"""
