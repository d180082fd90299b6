"""Check a commit message: the hook `commit-msg` of `.pre-commit-config.yaml`.

Usage: `python tools/commit_message.py FILE`. Exits with 1 and prints each rule that the message breaks.
"""

from __future__ import annotations

import sys
from pathlib import Path

SUBJECT = 60
"""Most characters of a subject."""
BODY = 100
"""Most characters of a line of the body."""


def faults(message: str) -> list[str]:
    """The rules that a commit message breaks.

    A message is an imperative subject of at most 60 characters, an empty line, and a body that says why. Comment lines
    (`#`) are ignored; merges and reverts, whose messages git writes, may stay as they are.
    """
    lines = [line.rstrip() for line in message.splitlines() if not line.startswith("#")]
    subject = lines[0] if lines else ""
    if subject.startswith(("Merge ", "Revert ", "fixup! ", "squash! ")):
        return []
    body = [line for line in lines[2:] if line]
    found = {
        "The subject is empty.": not subject,
        f"The subject has {len(subject)} characters; at most {SUBJECT} are allowed.": len(subject) > SUBJECT,
        "The subject ends with a period.": subject.endswith("."),
        "The subject starts with a lower-case letter.": subject[:1].islower(),
        "The line after the subject is not empty.": len(lines) > 1 and bool(lines[1]),
        "There is no body: say why the change is made.": not body,
        f"A line of the body has more than {BODY} characters.": any(len(line) > BODY for line in body),
    }
    return [rule for rule, broken in found.items() if broken]


if __name__ == "__main__":
    broken = faults(Path(sys.argv[1]).read_text())
    sys.stderr.writelines(f"{rule}\n" for rule in broken)
    sys.exit(bool(broken))
