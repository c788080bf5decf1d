"""Evidence files, as the benchmarks write them; `cgstate fidelity` writes some, too."""

from cgstate.testing.evidence import Bar, Row, at_least, at_most, exactly, write

__all__ = ["Bar", "Row", "at_least", "at_most", "exactly", "write"]
