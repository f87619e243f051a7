"""The tests that every backend of holdfast has to pass: `pytest --pyargs holdfast_lab.conformance --holdfast-url=URL`.

Every test runs on a store of its own, with threads and with asyncio. docs/internals/writing-a-backend.md explains it.
"""
