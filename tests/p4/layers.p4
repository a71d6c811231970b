// Headers that come in numbers or in one of several forms: a stack that the parser fills in a loop and that is shifted, a
// union, a varbit, and a field that is too wide for a word and only carried.
//
// Compiled forms lie beside this file; compile.py makes them.

#include <core.p4>
#include <v1model.p4>

header order_h {
    bit<8> what;
    bit<8> labels;   // 1: labels follow
    bit<8> answer;
}

header label_h {
    bit<15> value;
    bit<1>  is_last;
}

header small_h {
    bit<8> form;  // 1
    bit<8> a;
}

header large_h {
    bit<8>  form;  // 2
    bit<24> b;
}

header_union form_u {
    small_h small;
    large_h large;
}

header options_h {
    bit<8>    bytes;
    varbit<32> data;
    bit<16>   checksum;
}

header wide_h {
    bit<128> address;
    bit<8>   hops;
}

struct headers_t {
    order_h    order;
    label_h[3] labels;
    form_u     form;
    options_h  options;
    options_h  copy;
    label_h[3] spare;
    wide_h     wide;
}

struct meta_t {
    bit<8> length;
}

parser LayersParser(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.order);
        transition select(hdr.order.labels) {
            1:       label;
            default: form;
        }
    }
    state label {
        packet.extract(hdr.labels.next);
        transition select(hdr.labels.last.is_last) {
            0: label;
            1: form;
        }
    }
    state form {
        transition select(packet.lookahead<bit<8>>()) {
            1:       small;
            2:       large;
            3:       options;
            4:       wide;
            5:       skip;
            default: accept;
        }
    }
    state small {
        packet.extract(hdr.form.small);
        transition accept;
    }
    state large {
        packet.extract(hdr.form.large);
        transition accept;
    }
    state options {
        packet.advance(8);
        meta.length = packet.lookahead<bit<8>>();
        packet.extract(hdr.options, (bit<32>)(meta.length << 3));
        transition accept;
    }
    state skip {
        packet.advance(8);
        packet.advance((bit<32>)packet.lookahead<bit<8>>());  // bits
        transition accept;
    }
    state wide {
        packet.advance(8);
        packet.extract(hdr.wide);
        transition accept;
    }
}

control NoVerify(inout headers_t hdr, inout meta_t meta) {
    apply { }
}

control LayersIngress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    action say(bit<8> number) {
        hdr.order.answer = number;
    }
    table second_label {
        key = { hdr.labels[1].value: exact; hdr.labels[1].isValid(): exact; }
        actions = { say; }
        const default_action = say(1);
        const entries = {
            (0x111, true): say(2);
            (0, false):    say(3);
        }
    }
    table form {
        key = { hdr.form.isValid(): exact; hdr.form.small.isValid(): exact; hdr.form.large.b: ternary; }
        actions = { say; }
        const default_action = say(1);
        const entries = {
            (true, true, 0):         say(2);
            (true, false, 0x010203): say(3);
            (true, false, 0):        say(4);
            (false, false, _):       say(5);
        }
    }
    apply {
        standard.egress_spec = 1;
        if (standard.parser_error == error.StackOutOfBounds) {
            hdr.order.answer = 0xe1;
        } else if (standard.parser_error == error.HeaderTooShort) {
            hdr.order.answer = 0xe2;
        } else if (standard.parser_error == error.PacketTooShort) {
            hdr.order.answer = 0xe3;
        } else if (standard.parser_error == error.ParserInvalidArgument) {
            hdr.order.answer = 0xe4;
        } else if (hdr.order.what == 1) {
            second_label.apply();
        } else if (hdr.order.what == 2) {
            hdr.labels.push_front(1);
            hdr.labels[0].setValid();
            hdr.labels[0].value = 0x123;
        } else if (hdr.order.what == 3) {
            hdr.labels.push_front(2);
        } else if (hdr.order.what == 4) {
            hdr.labels.pop_front(1);
            second_label.apply();
        } else if (hdr.order.what == 5) {
            hdr.labels.pop_front(3);
        } else if (hdr.order.what == 6) {
            hdr.spare = hdr.labels;
            hdr.spare[1].value = 0x456;
        } else if (hdr.order.what == 7) {
            form.apply();
        } else if (hdr.order.what == 8) {
            hdr.form.large.setValid();
            hdr.form.large.form = 2;
            form.apply();
        } else if (hdr.order.what == 9) {
            hdr.form.small.setInvalid();
            form.apply();
        } else if (hdr.order.what == 10) {
            hdr.options.checksum = 0xabcd;
        } else if (hdr.order.what == 11) {
            hdr.copy = hdr.options;
            hdr.copy.bytes = 0x99;
            hdr.options.setInvalid();
        }
    }
}

control LayersEgress(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t standard) {
    apply { }
}

control NoUpdate(inout headers_t hdr, inout meta_t meta) {
    apply { }
}

control LayersDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(LayersParser(), NoVerify(), LayersIngress(), LayersEgress(), NoUpdate(), LayersDeparser()) main;
