"""Diagrams of the lifecycle, from the tables: `machines` and `overview` make them, the other modules draw them."""
