"""The contenders: one module per family, with a list CONTENDERS, which `benchmarks/contender.py` explains."""
