"""Who takes part: a module for each family, with a list CONTENDERS, which `benchmarks/contender.py` explains."""
