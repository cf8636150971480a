# SPDX-License-Identifier: Apache-2.0
"""The style of the doctor's pages: light and dark by the reader's system, one column on a phone, no fonts to fetch.

Invariant: text has a contrast of 4.5 to 1 or more on its ground in both schemes, and plots differ by more than colour.
"""

from __future__ import annotations

CSS = """
:root{--ground:#fbfaf7;--card:#fff;--ink:#1c2328;--soft:#59646c;--line:#dcdfe0;--grid:#e9ebea;
--c0:#0b6e8f;--c1:#c2571a;--c2:#5b7f2b;--c3:#7d4fa3;--good:#1f6f43;--bad:#a8231d;--warn:#8a5a00;--code:#f1f2ef}
@media (prefers-color-scheme:dark){:root{--ground:#14181b;--card:#1b2125;--ink:#e6e9ea;--soft:#a3adb3;--line:#323b41;
--grid:#272f34;--c0:#4fb3d4;--c1:#f0965a;--c2:#a3c86b;--c3:#c39be6;--good:#6cc795;--bad:#ff8d83;--warn:#e7b450;
--code:#232a2f}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1120px;margin:0 auto;padding:24px 20px 48px}
h1{font-size:1.9rem;line-height:1.2;margin:.1em 0;overflow-wrap:anywhere}
h2{font-size:1.25rem;margin:2.2em 0 .6em;border-bottom:1px solid var(--line);padding-bottom:.25em}
h3{font-size:1.02rem;margin:0 0 .35em}h4{font-size:1rem;margin:0 0 .3em}
small{font-weight:400;color:var(--soft);font-size:.86em}
p{margin:.5em 0;max-width:75ch}
.kind{color:var(--soft);margin:0;font-size:.9rem}
.verdict{font-size:1.1rem;font-weight:600;padding:.55em .8em;border-left:5px solid var(--warn);background:var(--card);
max-width:none}
.verdict.well{border-color:var(--good);color:var(--good)}.verdict.sick{border-color:var(--bad);color:var(--bad)}
.verdict.too{color:var(--warn)}
.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(240px,1fr));gap:.5em 1.5em;margin:.8em 0}
.head>div:first-child{grid-column:1/-1}
.steps .facts{grid-template-columns:repeat(auto-fill,minmax(min(100%,320px),1fr))}
.facts dt{color:var(--soft);font-size:.84rem}.facts dd{margin:0;overflow-wrap:anywhere}
.wide{overflow-x:auto;margin:.4em 0}
table{border-collapse:collapse;font-size:.92rem;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--soft);font-size:.86rem;padding-bottom:.3em}
th,td{padding:.34em .8em;text-align:right;border-bottom:1px solid var(--line);vertical-align:top;white-space:nowrap}
th:first-child{text-align:left;padding-left:0}
thead th{color:var(--soft);font-weight:600;font-size:.84rem;white-space:normal;vertical-align:bottom}
tbody th{font-weight:600}.fleet tbody th{white-space:normal;overflow-wrap:anywhere;min-width:13em}
td.text{overflow-wrap:anywhere}
#stocks~.wide :is(th,td):nth-child(n+6),.fleet :is(th,td):nth-child(2),.fleet th:last-child,td.text{text-align:left}
#stocks~.wide td:last-child,td.text{white-space:normal;min-width:14em}
.finding{background:var(--card);border:1px solid var(--line);border-left:5px solid var(--soft);border-radius:4px;
padding:.8em 1em;margin:.8em 0}
.finding.error{border-left-color:var(--bad)}.finding.warn{border-left-color:var(--warn)}
.finding p,.finding ul{max-width:88ch}.finding ul{margin:.4em 0;padding-left:1.3em}
.tag{font-size:.78rem;font-weight:700;border:1px solid currentColor;border-radius:3px;padding:.05em .45em;
color:var(--soft);white-space:nowrap}
.error .tag,.tag.sick{color:var(--bad)}.warn .tag,.tag.too{color:var(--warn)}.tag.well{color:var(--good)}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr));gap:18px}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:4px;padding:.9em 1em;min-width:0}
figure p{color:var(--soft);font-size:.92rem;margin:.4em 0}
figure .shoal{--bg:var(--card)}svg{display:block;width:100%;height:auto}
svg text{font:11.5px system-ui,sans-serif;fill:var(--soft)}svg .label{fill:var(--ink);font-size:12.5px}
svg .note{font-size:11px;fill:var(--ink);paint-order:stroke;stroke:var(--card);stroke-width:3px}
.grid{stroke:var(--grid)}.axis{stroke:var(--line)}.rule{stroke:var(--soft);stroke-dasharray:4 3}
.line{fill:none;stroke-width:1.7;stroke-linejoin:round}
.line.s0,.dot.s0{stroke:var(--c0)}.line.s1{stroke:var(--c1);stroke-dasharray:6 2}
.line.s2{stroke:var(--c2);stroke-dasharray:2 2}
.faint{stroke-width:.8;opacity:.55}.band{opacity:.16}.band.s0{fill:var(--c0)}.band.s1{fill:var(--c1)}.band.s2{fill:var(--c2)}
.dot{fill:var(--card);stroke-width:1.3}.dot.s1{stroke:var(--c1);fill:var(--c1)}.dot.s2{stroke:var(--c2)}
.fill.s0,.heat{fill:var(--c0)}.fill.s1{fill:var(--c1)}.fill.s2{fill:var(--c2)}.fill.s3{fill:var(--c3)}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.2em 1.1em;margin:.3em 0;padding:0;font-size:.88rem}
.key{display:inline-block;width:.8em;height:.8em;margin-right:.4em;border-radius:2px;background:var(--c0)}
.key.s1{background:var(--c1)}.key.s2{background:var(--c2)}.key.s3{background:var(--c3)}
details{margin:.4em 0}summary{cursor:pointer;color:var(--c0);font-size:.92rem}
summary:focus-visible,.wide:focus-visible,a:focus-visible{outline:2px solid var(--c0);outline-offset:2px}
a{color:var(--c0)}
.steps{padding-left:1.4em}.steps>li{margin:0 0 1.4em}
pre{background:var(--code);padding:.7em .9em;border-radius:4px;font:.86rem/1.5 ui-monospace,monospace;
margin:.4em 0;white-space:pre-wrap;overflow-wrap:anywhere}
.prose{background:var(--code);padding:.7em .9em;border-radius:4px}.prose>div+div{margin-top:.9em}
.prose p{margin:.1em 0;max-width:88ch}.prose .under{padding-left:1.4em;color:var(--soft)}
footer{margin-top:3em;color:var(--soft);font-size:.88rem;border-top:1px solid var(--line)}
@media (max-width:560px){main{padding:16px 14px 32px}h1{font-size:1.5rem}.finding,figure{padding:.7em .75em}
svg text{font-size:13.5px}svg .note{font-size:13px}svg .label{font-size:14px}
.stack,.stack tbody,.stack tr,.stack th,.stack td{display:block;text-align:left;border:0;padding:.1em 0}
.stack thead{position:absolute;clip-path:inset(50%)}.stack tr{border-bottom:1px solid var(--line);padding:.5em 0}
.stack td.text,.stack td{white-space:normal;min-width:0;overflow-wrap:anywhere}.stack td:empty{display:none}
.stack td:not(:last-child,.text)::before{content:attr(data-h) ": ";color:var(--soft)}}
@media print{.wide{overflow:visible}details{display:block}}
"""
