"""The simulator: the engine and protocols that ship, in virtual time, in a world where everything goes wrong.

    choices    every decision of a run, from a seed or a tape
    world      the clock, and tasks that take turns
    process    what can be paused and can crash, with a clock of its own
    runtime    the world as the engine sees it: the third runtime, beside threads and asyncio
    network    delay, loss, duplication, cuts
    servers/   a model of each store
    faults     all knobs
    nemesis    who turns them
    client     the engine with a shell that writes down what it sees
    workload   what the clients do
    recorder   the history, for the checkers
    run        one run from beginning to end, and its verdict

    search     random worlds, on all cores
    shrink     from a failing run to a short one; tapes keeps it in a file
    exhaustive everything that can happen in a small world
    cancels    a call, cancelled wherever it waits
    mutants/   deliberate bugs, which all of these have to find

The same seed gives the same history, byte for byte, on every machine.
"""
