"""Runs in Mininet: switches, hosts and links as processes, network namespaces and veth pairs, on one machine, as root.

    layout    the description of a network (pure)
    parts     requirements on the machine
    nodes     Mininet's node classes of this project: switches and hosts
    links     interfaces with a rate, and offloads set right
    network   a running network, built from a layout
    run       the backend: runs plans on such a network
    own_networks   aggregation in a network that a user has built (sa_atp/mininet.py)
    cleaning  removal of what crashed runs left

Every node, switches included, has a network namespace of its own. So nothing appears in the machine's own namespace, and
all links disappear with the last process.
"""
