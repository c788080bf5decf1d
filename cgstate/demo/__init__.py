"""The demonstration: a small two-component vocoder through its whole lifecycle, every output checked against eager.

`job` tells the story on any backend; `vocoder_sim` and `vocoder_torch` are the same model in simulated kernels and in torch
modules, which the simulator runs too; `show` draws the result for a person. Uses the public surface only, and may be read as an
example of embedding.
"""
