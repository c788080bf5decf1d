"""Does the simulator do what the GPU does? Small programs that both run, and what the GPU did, recorded."""
