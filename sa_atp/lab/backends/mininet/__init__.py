"""Runs in Mininet: switches, hosts and links as processes, network namespaces and veth pairs, on one machine, as root.

    layout    what a network consists of (pure)
    parts     what must be on the machine
    nodes     Mininet's node classes of this project: switches and hosts
    links     interfaces with a rate, and offloads set right
    network   a layout that has been built and runs
    run       plans on it: the backend
    cleaning  what crashed runs left

Every node, switches too, has a network namespace of its own. So nothing appears in the machine's own namespace, and
everything is gone with the last process in it.
"""
