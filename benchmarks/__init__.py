"""Measurements of holdfast and its peers in the same run: `make bench`.

    contenders/   the locks: one module per family, which defines how a lock is created and how it waits
    measures/     the measures: one module each, run on every contender that supports it
    adapters      holdfast and tooz as contenders of several families
    servers       the servers of contenders: started for each case, with their own count of commands
    delay         a proxy that delays requests to them
    plan          which contender is measured how, with which numbers
    runner        runs the plan: interleaved rounds, each case in a process of its own, pinned to given cores
    case          the program of such a process
    processes     the processes that contend in a case
    figures       medians, quantiles, Jain's index, overlaps
    results       the figures of each round, and their medians
    notify        a separate program: the cost of a hand-over on PostgreSQL, in round trips of NOTIFY
    claims        our claims, and whether they hold in this run
    table, plots, svg, machine, report, page    the output

The package contains no code that holdfast needs; it uses holdfast as any program does. docs/benchmarks.md explains how
to read the figures and what they do not compare.
"""
