"""A leaf switch for the ranks of one host, so that the host's link carries one sum instead of a tensor for each rank."""
