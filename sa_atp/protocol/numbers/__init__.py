"""Values on their way into packets and back: scaling, quantisation, and the layout of fragments. Pure."""
