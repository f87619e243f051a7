"""The laboratory of holdfast: the simulator (`sim`), the checkers of histories (`checking`) and the command (`cli`).

It imports private parts of holdfast, so both have the same version. holdfast does not import it.
"""
