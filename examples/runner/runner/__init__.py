"""A small speech runner: tokens in, audio out, by graphs that cgstate looks after."""

from runner.serving import Runner

__all__ = ["Runner"]
