"""Stateful tests of a manager, its components and its device: a Hypothesis machine, seeded walks, and what both are made of.

`machine.LifecycleMachine` needs Hypothesis; everything else needs nothing beyond the library.
"""
