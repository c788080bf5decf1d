"""Objects that must never be destroyed, also not at the end of the process.

torch aborts the process from the destructors of a `MemPool` (while any capture is open on any device, or after a failed one of
somebody else left its allocation routing open, or after the device was lost) and of a graph whose capture never began. No
destructor, no abort. What is held here costs a few hundred bytes of host memory; device memory is given back by other means.
"""

from __future__ import annotations

import ctypes


def immortalise(value: object) -> None:
    """Keep ``value`` alive for good: a reference that nothing owns, so that not even the interpreter's end drops it."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
