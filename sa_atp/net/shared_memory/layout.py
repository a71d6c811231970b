"""The memory that a switch and one rank share, a *channel*: a ring of datagrams in each direction; and the *results*,
memory that it shares with all ranks of its machine, where what leaves its program is written once, for any number of them.

    offset          written by
    UP_HEAD         rank       records that the rank has written
    UP_TAIL         switch     ... and of these, records that the switch has taken
    DOWN_HEAD       switch     records that the switch has written
    DOWN_TAIL       rank       ... and of these, records that the rank has taken
    SWITCH_SLEEPS   switch     1: ring the doorbell after writing
    RANK_SLEEPS     rank       odd: ring the bell after writing; it grows by one whenever the rank falls asleep or wakes up
    SPARES          rank       1: packets that others get as well are left out
    UP_RECORDS      rank       int64[RECORDS], see below
    DOWN_RECORDS    switch     int64[RECORDS]
    UP_DATA         rank       uint8[UP_BYTES]
    DOWN_DATA       switch     uint8[DOWN_BYTES]

Heads and tails are int64, count records, and never go back. A *record* stands for consecutive datagrams of one size, of
which the last may be shorter. Its bits are, from the lowest on: their bytes in all (20), the size of each (20), and where
the first begins in the data, in words of four bytes (23). Before a record's datagrams going up there are GAP bytes of room,
in which the switch writes the head of a frame.

A place in the data going down that is behind DOWN_BYTES is one in the results, which ranks can only read. The switch uses
their memory again when all ranks have taken the records that stand for it. Where one does not take its records, and the
results are full, datagrams are copied into the data of each rank's own channel, so that nobody waits for a rank.

A reader believes nothing that it has not compared with its bounds, and a writer reads nothing but the reader's tail. A
writer that finds all taken goes on at the beginning of the data, so only as much memory is used as datagrams wait.
"""

# each in a cache line of its own
UP_HEAD, UP_TAIL, DOWN_HEAD, DOWN_TAIL, SWITCH_SLEEPS, RANK_SLEEPS, SPARES = range(0, 7 * 64, 64)
RECORDS = 512  # a power of two
UP_RECORDS, DOWN_RECORDS, UP_DATA = 4096, 4096 + 8 * RECORDS, 4096 + 16 * RECORDS
# Powers of two, at most 32 MB. Down, all results of the slots of a job may wait, while a rank does not run.
UP_BYTES, DOWN_BYTES = 4 << 20, 16 << 20
RESULT_BYTES = 16 << 20
DOWN_DATA = UP_DATA + UP_BYTES
RESULTS = DOWN_DATA + DOWN_BYTES  # where the results begin in a rank's address space, if its channel begins at 0
CHANNEL_BYTES = RESULTS + 4096
FIELD_BITS = 20
FIELD = (1 << FIELD_BITS) - 1
GAP = 64
MOST_UP, MOST_DOWN = FIELD, 128 << 10  # bytes of a record
VERSION = 3
SAFE_BYTES = DOWN_BYTES * 3 // 4  # of results, that surely fit: some room is skipped where the data end
AT_ONCE_BYTES = 256 << 10  # that are written, or taken, before the other end hears of it, and then goes on
ROOM_US = 100  # a rank that finds no room looks again after this time
