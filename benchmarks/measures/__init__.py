"""The measures: one module each, with a constant MEASURE, which `benchmarks/measure.py` explains."""

ORDER = ["uncontended", "many", "contended", "threads", "waiters", "leases", "imports"]
