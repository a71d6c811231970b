// All that targets share, in the order in which a packet meets it. A target's program includes its architecture and its target.p4
// first, then this file, and puts the parts together.

#include "generated/lanes.p4"
#include "generated/bits.p4"
#include "headers.p4"
#include "parser.p4"
#include "ingress.p4"
#include "egress.p4"

control SwitchDeparser(packet_out packet, DEPARSER_PARAMETERS) {
    apply {
        packet.emit(hdr);
    }
}
