"""What is measured: a module for each question, with a constant MEASURE, which `benchmarks/measure.py` explains."""

ORDER = ["uncontended", "many", "contended", "waiters", "leases", "imports"]
