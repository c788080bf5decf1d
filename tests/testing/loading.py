"""How a pytest in a process of its own loads the plugin."""

LOAD_PLUGIN = ("-p", "no:cgstate", "-p", "cgstate.testing.plugin")
"""From this tree, and once: where the package is installed, its entry point would load it a second time, which is an error."""
