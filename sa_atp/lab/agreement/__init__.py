"""How well the models of the network agree with each other and with Mininet: for developers of this project."""
