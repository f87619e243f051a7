"""The safety of other libraries' locks: `holdfast verify` with an adapter for each, under one fault after the other."""
