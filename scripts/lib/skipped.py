"""Lists the tests that pytest skipped, grouped by reason, from its JUnit files. Needs nothing but Python.

python skipped.py FILE                    of one run
python skipped.py NAME=FILE NAME=FILE...  of several runs: tests skipped in each, tests skipped in all, and at the end
                                          `N passed, N failed, N skipped`, which counts each test once
"""

import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Test = tuple[str, str]
"""Class or module of a test, and its name. A file that is skipped as a whole has "" and its own name."""


@dataclass(frozen=True)
class Outcome:
    kind: str
    """passed, failed or skipped."""
    reason: str = ""


def outcomes(path: str) -> dict[Test, Outcome]:
    """Reads the outcome of each test. Raises: OSError, ParseError."""
    found: dict[Test, Outcome] = {}
    for case in ET.parse(path).iter("testcase"):
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            outcome = Outcome("failed")
        elif skipped is not None and skipped.get("type") != "pytest.xfail":
            outcome = Outcome("skipped", skipped.get("message") or "no reason given")
        else:
            outcome = Outcome("passed")
        test = case.get("classname", ""), case.get("name", "")
        if test not in found or found[test].kind != "failed":  # a test that failed may be listed again for its teardown
            found[test] = outcome
    return found


def together(ways: Iterable[Mapping[Test, Outcome]]) -> dict[Test, Outcome]:
    """Merges outcomes: a test that failed in one way has failed; else one that passed in one way has passed."""
    rank = {"skipped": 0, "passed": 1, "failed": 2}
    found: dict[Test, Outcome] = {}
    for way in ways:
        for test, outcome in way.items():
            if test not in found or rank[outcome.kind] >= rank[found[test].kind]:
                found[test] = outcome
    ran = {place for place, _ in found if place}
    # a file that was skipped as a whole in one way has tests in another
    return {
        (place, name): outcome
        for (place, name), outcome in found.items()
        if place or not any(other == name or other.startswith(f"{name}.") for other in ran)
    }


def print_skipped(where: str, found: Mapping[Test, Outcome]) -> None:
    reasons = Counter(outcome.reason for outcome in found.values() if outcome.kind == "skipped")
    print(f"Skipped{where}: {reasons.total()} of {len(found)} tests")
    for reason, count in reasons.most_common():
        print(f"  {count:4}  {reason}")


def main(arguments: list[str]) -> int:
    ways: dict[str, dict[Test, Outcome]] = {}
    status = 0
    for argument in arguments:
        name, equals, path = argument.partition("=")
        try:
            ways[name] = outcomes(path if equals else argument)
        except (OSError, ET.ParseError) as error:
            print(f"pytest left no results{f' {name}' if equals else ''}: {error}")
            status = 1
    if len(arguments) == 1 and "=" not in arguments[0]:
        for found in ways.values():
            print_skipped("", found)
        return status
    for name, found in ways.items():
        print_skipped(f" {name}", found)
    everything = together(ways.values())
    print_skipped(" in every way", everything)
    count = Counter(outcome.kind for outcome in everything.values())
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
