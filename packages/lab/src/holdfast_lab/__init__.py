"""The laboratory of holdfast.

The simulator (`sim`), tests of real servers (`verify`), the checkers of histories (`checking`), the commands (`cli`),
long searches (`long_search`), and the tests that every backend has to pass (`conformance`).
It imports private parts of holdfast, so both have the same version. holdfast does not import it.
"""
