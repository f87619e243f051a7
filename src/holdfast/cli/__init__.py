"""The command line. The top of the house: nothing imports it."""
