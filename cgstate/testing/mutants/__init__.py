"""Mutants: the lifecycle with one thing broken, and which of the checkers notices.

A property that no mutant breaks says nothing. So each row, guard and effect of the tables is broken in each way that `operators`
knows, and the faults that people have met are planted (`planted`). Every mutant climbs the `ladder` of checkers, from
cheap to dear, until one kills it. What nobody kills must be shown to be no mutant at all: its reachable graph is the reviewed one.
"""
