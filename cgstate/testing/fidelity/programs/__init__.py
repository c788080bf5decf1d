"""Random programs of captures, replays, evictions, resets, flushes and failures: does the simulator see what a GPU sees?"""
