"""How the caching allocator cuts memory into segments, in MiB; what its segments hold depends on these."""

SMALL_LIMIT = 1
"""Up to which an allocation is a small one."""
GRANULE = 2
"""Of a segment for small allocations, and the granule of those of one large allocation."""
LARGE_SEGMENT = 20
"""Of a segment that large allocations share."""
OWN_LIMIT = 10
"""From which a large allocation has a segment of its own."""
