"""A search of all backends and workloads that takes hours: in several processes, resumable, with a ledger.

    python -m holdfast_lab.long_search --ledger FILE --seeds 10000          # search, or continue
    python -m holdfast_lab.long_search --ledger FILE --publish FOLDER       # add the ledger to the published one

version   the version of the code under test
ledger    the file that records which seeds were searched
tasks     the parts of a search, each of which one process does in seconds or minutes
search    runs the tasks that the ledger does not have yet
publish   the ledger in the documentation, and its tables
"""
