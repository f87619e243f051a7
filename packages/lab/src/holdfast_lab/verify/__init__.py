"""`holdfast verify`: locks on real servers, under load and faults, through the checkers of the simulator.

adapter     the five methods of a lock that is tested; any library can have one
ours        the adapters of holdfast
worker      a process of the load; turns, journal, hub and interpose are its parts
runner      the parent: workers, faults, proxies and probes, one after the other
merge       journals -> histories
judging     histories -> the table of promises
reports     the table as text, JSON and HTML
"""

from .adapter import PROMISES, Adapter, AsyncAdapter

__all__ = ["PROMISES", "Adapter", "AsyncAdapter"]
