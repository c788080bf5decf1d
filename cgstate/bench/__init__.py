"""Measurements that anybody can repeat: what cgstate costs beside the ways that people use today, and how it scales.

`run` measures, part by part, `timing` says how a ratio is made that can be trusted on a shared host, `plot` draws the result. A
`Bed` is what is measured on: the simulator, or a CUDA device with torch.
"""
