"""The lifecycle as a specification: the tables composed into one system of actions, and what checks it.

Start reading at `system`. `properties` says what must hold; `walk` visits every state of a small system, `tla` and `tlc` let TLC do
the same, and `proof` shows with z3 what holds for any number of entries.
"""
