"""Measurements on a real device, and the commands that write them to ``docs/evidence``."""
