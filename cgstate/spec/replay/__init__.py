"""The model driven on the real runtime: every step of the walker's graph is taken by `GraphManager` on the simulator."""
