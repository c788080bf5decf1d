"""Adapters that put engines on cgstate; each imports its engine on use."""
