"""Devices: the small protocol in `base`, torch CUDA in `cuda`, the simulated device in `sim`. Nothing here imports the runtime."""
