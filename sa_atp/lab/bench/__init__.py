"""`sa-atp bench`: benchmarks of parts of the project on this machine, beside those of peers.

    allreduce          goodput and CPU cost of one all-reduce
      cluster          the request, and the processes that serve it, started here or by mininet
      mininet          these processes on a star with links of a given rate
      all_reduce_task  a worker's process
    help               the gain by help, setting by setting, in virtual time
      help_settings    the settings
      help_bound       the bound on any assignment of work, with devices and links
    switch             packets per second of the P4 program
      switch_load      until a fresh process can take packets
      switch_traffic   contributions, and results that are checked
      switch_io        through real interfaces, in a process of its own; switch_request is what it is asked
      switch_links     UDP virtual ports and veth pairs

The clusters and processes are those of `sa_atp.lab.runs`.
"""
