"""README's tables of measurements, made of the JSON that `fuseopt bench` wrote.

    python -m fuseopt.bench.tables tests/measured README.md

rewrites what stands between the markers in README.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

BEGIN = "<!-- measured tables: begin -->\n"
END = "<!-- measured tables: end -->"
NOTHING = "Not yet measured for this version.\n"

Data = Mapping[str, Any]


def tables(folder: Path) -> str:
    """Return the tables of all measurements in a folder, in the order of their names."""
    parts = []
    for path in sorted(folder.glob("*.json")):
        data = json.loads(path.read_text())
        lines = [_title(path, data), "", *_table(data)]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts) or NOTHING


def insert(text: str, made: str) -> str:
    """Return a document with tables in place of what stands between the markers."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{made}{END}{after}"


def _title(path: Path, data: Data) -> str:
    e = data["environment"]
    text = f"`{path.name}`: {e['device']}, torch {e['torch']}, triton {e['triton']}, {e['date']}"
    if "rows" in data:
        text += f", {data['dtype']}, copy rate {data['copy_rate'] / 1e9:,.0f} GB/s"
    return text


def _table(data: Data) -> list[str]:
    if "rows" in data:
        return list(_rows(data["rows"]))
    trained = any("first_step" in t for m in data["models"] for t in m["providers"].values())
    return list(_steps(data["models"]) if trained else _calls(data["models"]))


# --- functions ------------------------------------------------------------------------------------


def _rows(rows: Sequence[Data]) -> Iterator[str]:
    """Microseconds and share of the copy rate; the geometric mean of the shares last."""
    names = list(dict.fromkeys(n for row in rows for n in row["providers"]))
    yield _line(["row", *(f"{n}, µs (%)" for n in names)])
    yield _line(["---", *("---:" for _ in names)])
    for row in rows:
        yield _line([row["name"], *(_share(row["providers"].get(n)) for n in names)])
    yield _line(["geometric mean", *(_mean(rows, n) for n in names)])


def _share(timing: Data | None) -> str:
    if timing is None or timing["seconds"] is None:
        return "-"
    return f"{timing['seconds'] * 1e6:,.0f} ({timing['share']:.0%})"


def _mean(rows: Sequence[Data], name: str) -> str:
    found = [r["providers"][name]["share"] for r in rows if name in r["providers"]]
    shares = [s for s in found if s]
    product = 1.0
    for share in shares:
        product *= share ** (1 / len(shares))
    return f"({product:.0%} of {len(shares)})" if shares else "-"


# --- models ---------------------------------------------------------------------------------------


def _calls(models: Sequence[Data]) -> Iterator[str]:
    yield _line(["model", "", "one call, ms", "kernels", "peak memory, GiB", "first call, s"])
    yield _line(["---", "---", "---:", "---:", "---:", "---:"])
    for model in models:
        for name, t in model["providers"].items():
            cells = [_milliseconds(t), str(t["kernels"]), _gib(t), _seconds(t["first_call"])]
            yield _line([model["name"], name, *cells])


def _steps(models: Sequence[Data]) -> Iterator[str]:
    heads = ["one step, ms", "kernels", "peak memory, GiB", "first step, s", "loss after the last"]
    yield _line(["model", "", *heads])
    yield _line(["---", "---", *("---:" for _ in heads)])
    for model in models:
        for name, t in model["providers"].items():
            cells = [_milliseconds(t), str(t["kernels"]), _gib(t), _seconds(t["first_step"])]
            yield _line([model["name"], name, *cells, _last(t["losses"])])
        yield _line([model["name"], "eager, another seed", *[""] * 4, _last(model["other_seed"])])


def _milliseconds(timing: Data) -> str:
    return timing["note"] if timing["seconds"] is None else f"{timing['seconds'] * 1e3:.2f}"


def _seconds(taken: float | None) -> str:
    return "-" if taken is None else f"{taken:.1f}"


def _gib(timing: Data) -> str:
    return f"{timing['peak_bytes'] / 2**30:.2f}"


def _last(losses: Sequence[float]) -> str:
    return f"{losses[-1]:.4f}" if losses else "-"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    folder, document = map(Path, sys.argv[1:])
    document.write_text(insert(document.read_text(), tables(folder)))
