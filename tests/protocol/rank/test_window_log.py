"""Changes of windows as events."""

from sa_atp.protocol.log.event import Event
from sa_atp.protocol.log.rank_events import WindowChanged
from sa_atp.protocol.rank.pace.window import Window
from sa_atp.protocol.rank.pace.window_log import WindowLog


def watched() -> tuple[Window, WindowLog, list[Event]]:
    window, events = Window(256), list[Event]()
    return window, WindowLog(window, events.append), events


def test_a_window_that_grows_is_not_logged() -> None:
    window, log, events = watched()
    window.on_results(10, 0, 0, 100, 1000)
    log.note("mark")
    assert window.network > 64
    assert not events


def test_a_mark_ends_slow_start_and_its_round_makes_the_window_smaller() -> None:
    window, log, events = watched()
    window.on_results(10, 0, 0, 100, 1000)
    log.note("mark")
    window.on_results(10, 10, 0, 200, 1000)
    log.note("mark")
    window.on_results(0, 0, 0, 1300, 1000)
    log.note("mark")
    queue, mark = events
    assert queue == WindowChanged("queue", 74, 256, 74, 256)
    assert isinstance(mark, WindowChanged)
    assert (mark.why, mark.network, mark.network_before) == ("mark", int(window.network), 74)
    assert mark.network < mark.network_before


def test_collisions_and_losses_are_told_apart() -> None:
    window, log, events = watched()
    window.on_results(1, 0, 1, 100, 1000)
    log.note("mark")
    window.on_loss(20, 0.1, 200, 1000)
    log.note("loss")
    assert [event.why for event in events if isinstance(event, WindowChanged)] == ["collision", "loss"]
    assert events[0] == WindowChanged("collision", 65, 128, 65, 256)


def test_compiled_code_may_have_applied_any_rule() -> None:
    window, log, events = watched()
    window.on_results(1, 0, 1, 100, 1000)
    log.note("stream")
    assert events == [WindowChanged("stream", 65, 128, 64, 256)]
