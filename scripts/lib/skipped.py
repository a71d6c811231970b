"""Lists what pytest skipped, grouped by reason, from its JUnit file: python skipped.py FILE."""

import sys
import xml.etree.ElementTree as ET
from collections import Counter


def main(path: str) -> int:
    try:
        cases = list(ET.parse(path).iter("testcase"))
    except (OSError, ET.ParseError) as error:
        print(f"pytest left no results: {error}")
        return 1
    reasons = Counter(
        skipped.get("message") or "no reason given" for case in cases for skipped in case.findall("skipped")
    )
    print(f"Skipped: {reasons.total()} of {len(cases)} tests")
    for reason, count in reasons.most_common():
        print(f"  {count:4}  {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
