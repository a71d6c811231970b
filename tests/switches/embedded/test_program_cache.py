"""A program and its translation are the same from the cache as newly made."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sa_atp.switches import artefacts
from sa_atp.switches.embedded import program_cache
from sa_atp.switches.embedded.loading import load
from sa_atp.switches.embedded.p4runtime_server import program_schema
from sa_atp.switches.embedded.translate import translate

CONFIG = artefacts.program(64).device_config()


def test_a_cached_program_equals_the_loaded_one(tmp_path: Path) -> None:
    made, first = program_cache.loaded(CONFIG, tmp_path)
    again, second = program_cache.loaded(CONFIG, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    whole = translate(load(CONFIG))
    assert first.source == second.source == whole.source
    assert first.arguments == second.arguments == whole.arguments
    assert program_schema.from_program(made) == program_schema.from_program(again)
    assert program_schema.from_program(again) == program_schema.from_program(load(CONFIG))


def test_a_damaged_file_is_written_anew(tmp_path: Path) -> None:
    program_cache.loaded(CONFIG, tmp_path)
    (file,) = tmp_path.iterdir()
    sound = file.read_bytes()
    for damaged in (b"", sound[: len(sound) // 2], b"no pickle"):
        file.write_bytes(damaged)
        _, translation = program_cache.loaded(CONFIG, tmp_path)
        assert translation.source == translate(load(CONFIG)).source
        assert file.read_bytes() == sound


def test_without_a_cache_nothing_is_kept() -> None:
    _, translation = program_cache.loaded(CONFIG, None)
    assert translation.source == translate(load(CONFIG)).source


NAMES = st.sets(st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(".".join), min_size=1, max_size=8)


@given(NAMES)
def test_an_alias_is_the_shortest_end_that_nobody_shares(names: set[str]) -> None:
    found = program_schema.aliases(names)

    def ends_with(name: str, end: str) -> bool:
        return name == end or name.endswith(f".{end}")

    for name in names:
        alias = found[name]
        assert ends_with(name, alias)
        if alias != name:
            assert not any(ends_with(other, alias) for other in names if other != name)
        shorter = alias.partition(".")[2]
        assert not shorter or any(ends_with(other, shorter) for other in names if other != name)
