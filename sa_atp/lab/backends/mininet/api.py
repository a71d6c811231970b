"""The classes of Mininet that are used here, imported without its warnings."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it imports distutils, and compares with `is`
    from mininet.link import Intf, Link
    from mininet.net import Mininet
    from mininet.node import Host, Switch

# Mininet would raise limits of the whole machine (sysctl), and leave them so. Nothing here needs that.
Mininet.inited = True

__all__ = ["Host", "Intf", "Link", "Mininet", "Switch"]
