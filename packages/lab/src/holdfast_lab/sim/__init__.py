"""The simulator: the engine and the protocols that ship, in virtual time, with every kind of fault.

    choices      every random decision of a run, drawn from a seed or replayed
    world        the clock, and tasks that run one at a time
    process      a process that can be paused and crash, with a clock of its own
    runtime      the third runtime, beside threads and asyncio
    network      delay, loss, duplication and cuts of messages
    servers/     a model of each store
    faults       the kinds of faults and their probabilities
    nemesis      injects faults into processes, links and servers
    client       the engine with a shell that records events
    workload     the calls that clients make
    recorder     the history, for the checkers
    run          one run from start to verdict

    search       random search over seeds, on all cores
    shrink       reduces a failing run to a short one; replay saves it
    exhaustive   enumerates all schedules of a small world
    cancellation cancels each call at each point where it waits
    mutants/     deliberate bugs that these searches must find

The same seed gives the same history, byte for byte, on every machine.
"""
