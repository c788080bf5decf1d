"""A trace as one page: timeline, every entity's state at a chosen event, the bytes of each pool, what the checker says.

The page needs no server and nothing from outside. `collect` makes the data that is in it, `page` puts it together.
"""

from cgstate.trace.html.collecting import MOST, collect
from cgstate.trace.html.page import write

__all__ = ["MOST", "collect", "write"]
