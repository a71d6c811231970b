// What v1model calls differently, or can do only in its own way.
//
// A register is read and written by separate statements here; ON_STATE writes them around an update, so that what is
// between them is the same on every target: one read-modify-write.

typedef bit<9> PortId_t;  // TNA's name
#define LOOP_PORT 511     // none: packets that are dropped are said to leave by it
#define MARK_ABOVE 40     // packets in a queue

// What was last touched longer ago than the job says has lapsed, and what never was. Ticks wrap around after 50 days, and so
// does the difference.
#define HAS_LAPSED (was.id == 0 || meta.now - was.touched > meta.ttl)
#define NEVER      (meta.now - 0x40000000)

#define AT(slot) ((bit<32>)slot)

#define STATE(T, array) register<T>(SLOTS) array;
#define ON_STATE(T, array, slot, operation, result, ...) \
    action operation() { T held; T seen; array.read(held, AT(slot)); __VA_ARGS__ array.write(AT(slot), held); result = seen; }
#define STATE_PAIR(array) register<word_t>(SLOTS) array##_id; register<tick_t>(SLOTS) array##_touched;
#define ON_PAIR(array, slot, operation, result, ...) \
    action operation() { \
        claim_t held; claim_t was; claim_case_t seen; \
        array##_id.read(was.id, AT(slot)); array##_touched.read(was.touched, AT(slot)); held = was; __VA_ARGS__ \
        array##_id.write(AT(slot), held.id); array##_touched.write(AT(slot), held.touched); result = seen; }
#define WHEN(condition, target, value) target = (condition) ? value : target;
#define SEE_CASE(own, lapsed) \
    seen = (own) ? ((lapsed) ? CLAIM_OWN_LAPSED : CLAIM_OWN) : ((lapsed) ? CLAIM_LAPSED : CLAIM_OTHER);
#define DO(operation, slot, result) operation();
#define AT_STAGE(n)
#define CLAIMABLE_WHEN_COMPLETE \
    if (meta.full == 1 && meta.is_leaf == 0) { \
        slot_claim_touched.write(AT(hdr.sa.slot), NEVER); slot_live.write(AT(hdr.sa.slot), 0); }

#define COUNTER(name, size) counter(size, CounterType.packets_and_bytes) name;
#define COUNT(name, index) name.count((bit<32>)(index));

// What the shared parser and controls are given besides headers and meta_t; fields of `standard` have the same names everywhere.
#define PARSER_METADATA inout meta_t meta, inout standard_metadata_t standard
#define INGRESS_METADATA inout standard_metadata_t standard
#define INGRESS_ARGUMENTS standard
#define EGRESS_METADATA inout standard_metadata_t standard
#define DEPARSER_PARAMETERS in headers_t hdr

#define ARRIVAL meta.damaged = standard.checksum_error; meta.now = standard.ingress_global_timestamp[41:10];
#define TO_PORT(port) standard.egress_spec = port;
#define TO_GROUP(group) standard.mcast_grp = group;
#define TO_NOBODY mark_to_drop(standard);

// Headers are verified between parser and ingress (sa_atp.p4), and egress gets them as ingress left them.
#define BEFORE_ETHERNET
#define TELL_EGRESS(what)
#define HAS_BARE_RESULTS
#define SEND_BARE send_bare;
#define AFTER_LANES end;
#define OTHER_END
#define VERIFIER
#define VERIFY(header)
