"""The classes of Mininet that this package uses, imported without Mininet's warnings."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it imports distutils, and compares with `is`
    from mininet import log
    from mininet.cli import CLI
    from mininet.link import Intf, Link
    from mininet.net import Mininet
    from mininet.node import Host, Switch

# keeps Mininet from raising limits of the whole machine (sysctl) for good, which this package does not need
Mininet.inited = True

__all__ = ["CLI", "Host", "Intf", "Link", "Mininet", "Switch", "log"]
