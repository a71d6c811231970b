"""The style sheet of report.html."""

NARROW_BELOW = 800  # pixels: narrower screens get the narrow figures

STYLE = """\
:root { color-scheme: light; --ink: #222; --faint: #666; --line: #ddd; --bad: #b22222; }
* { box-sizing: border-box; }
body { margin: 0; background: #fff; color: var(--ink); line-height: 1.5; font-size: 16px;
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", Arial, sans-serif; }
main { max-width: 1248px; margin: 0 auto; padding: 32px 24px 64px; }
.kicker { margin: 0; color: var(--faint); font-size: 14px; }
h1 { margin: 4px 0 8px; font-size: 28px; line-height: 1.25; text-wrap: balance; }
h2 { margin: 48px 0 12px; padding-top: 12px; border-top: 1px solid var(--line); font-size: 20px; }
.lead { margin: 0; color: var(--faint); }
.note { color: var(--faint); font-size: 14px; max-width: 80ch; }
.remark { margin: 16px 0; padding: 4px 16px; border-left: 5px solid #c98a00; background: #fdf6e3; }
.remark p { margin: 8px 0; }
.remark.wrong { margin-top: 0; border: 2px solid var(--bad); border-left-width: 8px; background: #fdecea;
  color: #8b1a1a; font-weight: 600; }
.cards { display: flex; flex-wrap: wrap; gap: 12px 36px; margin: 28px 0 20px; }
.cards div { flex: 1 1 140px; max-width: 220px; }
.cards b { display: block; font-size: 32px; line-height: 1.2; font-variant-numeric: tabular-nums; white-space: nowrap; }
.cards span { display: block; color: var(--faint); font-size: 14px; line-height: 1.4; }
.cards .bad b { color: var(--bad); }
figure { margin: 0 0 36px; }
figure img { display: block; width: 100%; max-width: 1200px; height: auto; }
@media screen and (max-width: NARROW_BELOWpx) { main { padding: 16px 12px 48px; } figure img { max-width: 560px; } }
figcaption { margin-top: 6px; color: var(--faint); font-size: 14px; max-width: 80ch; }
table { border-collapse: collapse; font-size: 14px; }
th { text-align: left; font-weight: 400; vertical-align: top; }
.scroll { overflow-x: auto; }
.numbers th, .numbers td { padding: 3px 0; }
.numbers td, .numbers th[scope=col] { padding-left: 36px; text-align: right; vertical-align: bottom;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.numbers th[scope=col] { font-weight: 600; }
.numbers small { display: block; color: var(--faint); font-weight: 400; }
.numbers tr.group th { padding-top: 14px; font-weight: 600; border-bottom: 1px solid var(--line); }
.numbers td.bad { color: var(--bad); font-weight: 700; }
.plan th { padding: 3px 24px 3px 0; color: var(--faint); white-space: nowrap; }
.plan td { padding: 3px 0; overflow-wrap: anywhere; }
.plan b { font-weight: 600; }
pre { padding: 10px 14px; background: #f5f5f5; overflow-x: auto; white-space: pre-wrap; font-size: 14px;
  font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
@media print { main { max-width: none; padding: 0; } figure, tr { break-inside: avoid; } }
""".replace("NARROW_BELOW", str(NARROW_BELOW))
