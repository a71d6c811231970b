[  0.0 s] loading the switch program (compiled the first time)
[  0.5 s] loading the model digits-cnn and its data
[  4.6 s] loading the model digits-cnn and its data
[  6.7 s] atp, repetition 1 of 1
sa-atp: there is not enough memory: a process may have 1.5 GB of address space (ulimit -v)
