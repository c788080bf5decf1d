"""What z3 proves: inductive invariants for any number of entries, and the rules of single steps for all values."""
