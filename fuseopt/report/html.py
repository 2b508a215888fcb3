"""The report as one HTML page without scripts or outside files."""

from __future__ import annotations

from jinja2 import Environment

import fuseopt
from fuseopt.report.build import Report
from fuseopt.report.groups import MEANINGS, group_regions, group_rejects
from fuseopt.report.shorten import (
    byte_size,
    duration,
    short_ops,
    short_tensors,
    source_lines,
)

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>fuseopt: {{ report.subject or "report" }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem;
  color: #1b1f24; background: #fff; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem; }
th { font-weight: 600; } tbody tr { border-top: 1px solid #d8dee4; }
.figures td:first-child { color: #59636e; width: 8rem; } .figures tr { border: 0; }
.number { text-align: right; white-space: nowrap; } code, .small { font-size: 13px; }
.small { color: #59636e; } .note { background: #fff8c5; padding: .5rem .8rem; border-radius: 6px; }
.wrong { background: #ffebe9; } td { overflow-wrap: anywhere; }
@media (prefers-color-scheme: dark) { body { color: #e6edf3; background: #0d1117; }
  tbody tr { border-color: #30363d; } .small, .figures td:first-child { color: #9198a1; }
  .note { background: #3a2f0b; } .wrong { background: #4b1414; } }
</style></head><body>
<h1>{{ report.subject or "fuseopt report" }}</h1>
{% set t = report.totals %}
<table class="figures"><tbody>
<tr><td>captured</td><td>{{ t.graphs }} graphs, {{ t.operations }} operations,
  {{ t.graph_breaks }} graph breaks</td></tr>
<tr><td>launches</td><td>{{ t.launches_before }} → <b>{{ t.launches_after }}</b></td></tr>
<tr><td>traffic</td><td>{{ t.bytes_before | bytes }} → <b>{{ t.bytes_after | bytes }}</b>
  in the fused parts</td></tr>
<tr><td>fused</td><td>{{ t.regions }} regions by {{ t.kernels }} distinct kernels,
  {{ t.verified }} verified, {{ t.rolled_back }} rolled back</td></tr>
{% if report.measured %}<tr><td>one call</td><td>{{ report.measured.seconds_before | time }} →
  <b>{{ report.measured.seconds | time }}</b> on {{ report.measured.device }}</td></tr>{% endif %}
</tbody></table>
{% for f in report.fell_back %}<p class="note">{{ f.reason }}</p>{% endfor %}
{% for r in report.rolled_back %}<p class="note wrong">Rolled back: {{ r.reason }}</p>{% endfor %}
{% for b in report.graph_breaks %}<p class="note">Graph break{% if b.location %} at
  {{ b.location }}{% endif %}: {{ b.reason }}</p>{% endfor %}
{% if regions %}<h2>Fused</h2>
<table><thead><tr><th>region</th><th>what and where</th><th class="number">launches</th>
<th class="number">traffic</th><th>check</th></tr></thead><tbody>
{% for g in regions %}{% set r = g.first %}
<tr><td><code>{{ r.region }}</code>{% if g.regions | length > 1 %} ×{{ g.regions | length }}
{% endif %}</td>
<td><b>{{ r.rule or "chain" }}</b>: {{ r.nodes | ops }}<br>{{ g.places | join("; ") }}
<span class="small">{{ g.nodes | lines }}</span><br>
<span class="small">{{ r.inputs | tensors }} → {{ r.outputs | tensors }}</span><br>
<code>{{ r.kernel }}</code> <span class="small">{{ r.schedule }}</span></td>
<td class="number">{{ r.launches_before }} → {{ r.launches_after }}</td>
<td class="number">{{ r.bytes_before | bytes }} → {{ r.bytes_after | bytes }}</td>
<td>{% if r.verified %}verified{% if r.verified.limit %}
<span class="small">{{ "%.1e" | format(r.verified.error) }}</span>{% endif %}
{% else %}not verified{% endif %}</td></tr>
{% endfor %}</tbody></table>{% endif %}
{% if rejects %}<h2>Not fused</h2>
<table><tbody>{% for code, groups in rejects.items() %}{% for g in groups %}
<tr><td>{% if loop.first %}<code>{{ code.value }}</code><br>
<span class="small">{{ meanings[code] }}</span>{% endif %}</td>
<td class="number">{{ g.rejects | length }}×</td><td>{{ g.ops }}</td>
<td>{{ g.places | join("; ") }}{% if g.sentence %}<br>
<span class="small">{{ g.sentence }}</span>{% endif %}{% if g.first.rule %}<br>
<span class="small">nearest rule: {{ g.first.rule }}</span>{% endif %}</td></tr>
{% endfor %}{% endfor %}</tbody></table>{% endif %}
<p class="small">fuseopt {{ version }}</p>
</body></html>
"""


def report_html(report: Report) -> str:
    """Return the page."""
    environment = Environment(autoescape=True, trim_blocks=True)
    environment.filters |= {
        "bytes": byte_size,
        "time": duration,
        "ops": short_ops,
        "lines": source_lines,
        "tensors": short_tensors,
    }
    return environment.from_string(_PAGE).render(
        report=report,
        regions=group_regions(report.regions),
        rejects=group_rejects(report.rejected),
        meanings=MEANINGS,
        version=fuseopt.__version__,
    )
