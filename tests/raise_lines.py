"""The `raise` lines of the package that no test has reached.

    pytest --cov=src/cometric --cov-report=json:coverage.json
    python tests/raise_lines.py coverage.json

Kernels are left out: what is compiled cannot be followed, and they raise nothing.
"""

import ast
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main(report: str) -> int:
    files = json.loads(Path(report).read_text())["files"]
    reached, missed = 0, []
    for path in sorted((ROOT / "src").rglob("*.py")):
        name, source = path.relative_to(ROOT).as_posix(), path.read_text("utf-8")
        executed = set(files.get(name, {}).get("executed_lines", []))
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Raise) and "kernels" not in path.parts:
                reached += node.lineno in executed
                if node.lineno not in executed:
                    line = source.splitlines()[node.lineno - 1].strip()
                    missed.append(f"{name}:{node.lineno}: {line}")
    print(*missed, f"{reached} of {reached + len(missed)} raise lines reached", sep="\n")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
