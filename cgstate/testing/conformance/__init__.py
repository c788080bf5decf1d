"""Conformance: does a routine, or a backend, keep the promises that the runtime relies on?

`routine.check_routine` examines a routine with samples of its calls. `backend.BackendConformance` is a class of tests to subclass
for a backend; it needs pytest.
"""
