"""`sa-atp bench`: what a part of the project reaches on this machine, beside a peer's.

    allreduce          goodput and CPU cost of one all-reduce
      cluster          what is asked for, and the processes that it runs on; set up here, or by mininet
      mininet          those processes on a star with links of the rate that is asked for
      all_reduce_task  what each worker does, as a process
    help               what help is worth, setting by setting, in virtual time
      help_settings    the settings
      help_bound       what no assignment of work can beat, counting devices and links
    switch             packets per second of the P4 program
      switch_load      until a fresh process can take packets
      switch_traffic   contributions, and results that are checked
      switch_io        through real interfaces, in a process of its own; switch_request is what it is asked
      switch_links     UDP virtual ports and veth pairs

The clusters and processes are those of `sa_atp.lab.runs`.
"""
