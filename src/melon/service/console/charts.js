// Lines over time by uPlot, bars, and a heat map; each says in words what it shows and has its numbers as a table.
import { html, useEffect, useRef, useState } from "./htm-preact.js";
import { clock, num } from "./text.js";

const MARKS = { quarantined: "--bad", alarm: "--bad", switch: "--served", promote: "--served", rollback: "--served", start: "--warn", reload: "--warn" };
const shade = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Vertical lines where something happened, the same in every chart.
function drawMarks(plot, marks) {
  const { ctx, bbox } = plot;
  const [first, final] = [plot.scales.x.min, plot.scales.x.max];
  ctx.save();
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
  for (const mark of marks.filter(({ time }) => time >= first && time <= final)) {
    const x = Math.round(plot.valToPos(mark.time, "x", true));
    ctx.strokeStyle = ctx.fillStyle = shade(MARKS[mark.kind] ?? "--faint");
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.fillRect(x - 3 * devicePixelRatio, bbox.top, 6 * devicePixelRatio, 4 * devicePixelRatio);
  }
  ctx.restore();
}

function options(spec, width, live) {
  const axis = { stroke: shade("--soft"), grid: { stroke: shade("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  const format = spec.format ?? num;
  const lines = spec.lines.flatMap((line) => {
    const plain = { label: line.name, stroke: shade(line.color), width: 2, dash: line.dash, points: { show: false }, spanGaps: true };
    const edge = { stroke: "transparent", width: 0, points: { show: false }, spanGaps: true };
    return line.low ? [plain, { ...edge, label: "high" }, { ...edge, label: "low" }] : [plain];
  });
  const banded = spec.lines.findIndex((line) => line.low) + 1;
  return {
    width, height: spec.height ?? 190, padding: [8, 24, 0, 0], legend: { show: false },
    cursor: { sync: { key: "melon" }, drag: { x: false, y: false }, points: { size: 6 } },
    scales: { x: { time: true, range: () => spec.span }, y: { range: (_, low, high) => spec.from0 ? [0, Math.max(high ?? 0, spec.least ?? 0.001) * 1.08] : spread(low, high) } },
    axes: [{ ...axis, size: 28, space: 70, values: (_, ticks) => ticks.map((tick) => moment(tick, spec.span[1] - spec.span[0])) }, { ...axis, size: 50, values: (_, ticks) => ticks.map((tick) => format(tick)) }],
    series: [{}, ...lines],
    bands: banded ? [{ series: [banded + 1, banded + 2], fill: shade("--band") }] : [],
    hooks: { drawAxes: [(plot) => drawMarks(plot, live.current.marks)], setCursor: [(plot) => live.current.point(plot.cursor.idx)] },
  };
}

function moment(tick, window) {
  const time = clock(tick).slice(0, window > 900 ? 5 : 8), day = new Date(1000 * tick);
  return window > 86400 ? day.toLocaleDateString("en-GB", { day: "numeric", month: "short" }) : time;
}

// How a line looks in a legend.
export const dashes = (dash) => (dash ? (dash[0] < 4 ? "dotted" : "dashed") : "");

const spread = (low, high) => {
  if (low === null || high === null) return [0, 1];
  const room = Math.max(0.12 * (high - low), 0.01);
  return [Math.max(low - room, 0), high + room];
};

// spec: {name, lines: [{name, color, values, dash, low, high}], time, span, marks, format, from0, least, height, theme}
export function Chart(spec) {
  const place = useRef(null), plot = useRef(null), live = useRef({ marks: [], point: () => {} });
  const [at, setAt] = useState(null);
  const format = spec.format ?? num;
  live.current = { marks: spec.marks ?? [], point: (index) => setAt(index ?? null) };
  const data = [spec.time, ...spec.lines.flatMap((line) => (line.low ? [line.values, line.high, line.low] : [line.values]))];
  const kind = `${spec.theme} ${spec.lines.map((line) => line.name + Boolean(line.low))}`;
  useEffect(() => {
    const box = place.current;
    // eslint-disable-next-line no-undef
    plot.current = new uPlot(options(spec, box.clientWidth || 300, live), data, box);
    const sized = new ResizeObserver(() => plot.current?.setSize({ width: box.clientWidth, height: spec.height ?? 190 }));
    sized.observe(box);
    return () => { sized.disconnect(); plot.current.destroy(); plot.current = null; };
  }, [kind]);
  useEffect(() => {
    if (!plot.current) return;
    plot.current.scales.x.range = () => spec.span;
    plot.current.setData(data);
  }, [spec.time, spec.lines, spec.marks]);
  const told = spec.lines.map((line) => ({ ...line, value: at === null ? line.values.findLast((one) => one !== null) : line.values[at] }));
  const empty = spec.lines.every((line) => line.values.every((value) => value === null));
  const when = at === null ? "now" : clock(spec.time[at], spec.span[1] - spec.span[0]);
  return html`<figure class="chart">
    <figcaption><b>${spec.name}</b><span class="legend">${told.map((line) => html`<span key=${line.name}>
      <i class="key ${dashes(line.dash)}" style=${{ borderColor: `var(${line.color})` }}></i>${line.name} <b>${format(line.value)}</b></span>`)}
      <span class="soft">${when}</span></span></figcaption>
    ${empty && html`<p class="note">${spec.none ?? "Nothing was measured in this window."}</p>`}
    <div ref=${place} class="plot ${empty ? "empty" : ""}" role="img" aria-label=${`${spec.name}. ${spec.lines.map((line) =>
      `${line.name}: ${format(line.values.findLast((one) => one !== null))}`).join(", ")}.`}></div>
    <${Numbers} name=${spec.name} time=${spec.time} lines=${spec.lines} format=${format} window=${spec.span[1] - spec.span[0]} />
  </figure>`;
}

function Numbers({ name, time, lines, format, window }) {
  const [open, setOpen] = useState(false);
  const rows = open ? time.map((_, n) => n).filter((n) => lines.some((line) => line.values[n] !== null)).slice(-20).reverse() : [];
  return html`<details onToggle=${(event) => setOpen(event.currentTarget.open)}><summary>Numbers<span class="hidden"> of ${name}</span></summary>
    ${open && html`<div class="scroll" tabindex="0" role="region" aria-label=${`Numbers of ${name}`}><table><thead><tr><th scope="col">until</th>${lines.map((line) => html`<th scope="col">${line.name}</th>`)}</tr></thead>
    <tbody>${rows.map((n) => html`<tr><th scope="row">${clock(time[n], window)}</th>${lines.map((line) => html`<td>${format(line.values[n])}</td>`)}</tr>`)}</tbody></table></div>`}</details>`;
}

// bars: [{name, value}]
export function Bars({ name, bars, unit }) {
  const most = Math.max(...bars.map((bar) => bar.value), 1), all = bars.reduce((sum, bar) => sum + bar.value, 0);
  const words = bars.filter((bar) => bar.value).map((bar) => `${bar.name}: ${num(bar.value)}`).join(", ");
  return html`<div class="bars" role="img" aria-label=${`${name}. ${words || "nothing yet"}`}>${bars.map((bar) => html`
    <div class="bar" key=${bar.name} title=${`${bar.name}: ${num(bar.value)} ${unit}`}>
      <span class="top">${bar.value && all ? `${Math.round((100 * bar.value) / all)}%` : ""}</span>
      <span class="fill" style=${{ height: `${(70 * bar.value) / most}px` }}></span><span class="under">${bar.name}</span></div>`)}</div>`;
}

// Rows are interactions, columns parameters; the shade goes by order, so that one large rate does not hide the others.
export function Heat({ rates }) {
  const place = useRef(null);
  const flat = rates.values.flat(), sorted = [...new Set(flat)].sort((one, other) => one - other);
  const varied = rates.most - rates.least > 1e-6 * Math.abs(rates.most);
  useEffect(() => {
    const canvas = place.current, lines = rates.values.length, columns = rates.values[0]?.length ?? 0;
    if (!canvas || !columns) return;
    canvas.width = columns;
    canvas.height = lines;
    const pixels = canvas.getContext("2d"), picture = pixels.createImageData(columns, lines);
    const order = new Map(sorted.map((value, n) => [value, sorted.length > 1 ? n / (sorted.length - 1) : 0.5]));
    flat.forEach((value, n) => picture.data.set([...viridis(order.get(value)), 255], 4 * n));
    pixels.putImageData(picture, 0, 0);
  }, [rates]);
  if (!varied) {
    return html`<p class="note">Every interaction and parameter has the same rate, <b>${num(rates.mean, 4)}</b>. A strategy that learns rates (MeLON after meta-training) gives each its own.</p>`;
  }
  return html`<div class="heat"><canvas ref=${place} role="img" aria-label=${`Learning rates of ${rates.values.length} interactions, from ${num(rates.least, 4)} to ${num(rates.most, 4)}, on average ${num(rates.mean, 4)}.`}></canvas>
    <div class="groups" style=${{ gridTemplateColumns: rates.groups.map((group) => `${group.columns}fr`).join(" ") }}>${rates.groups.map((group) => html`<span key=${group.name} title=${`${group.name}: ${group.columns} of ${group.of} columns`}>${group.columns > 3 ? group.name.replaceAll("_", " ") : ""}</span>`)}</div>
    <p class="scale"><span>${num(rates.least, 4)}</span><i></i><span>${num(rates.most, 4)}</span><span class="soft">shade by order; a row is an interaction, a column a parameter; mean ${num(rates.mean, 4)}</span></p></div>`;
}

const STOPS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
function viridis(part) {
  const place = Math.min(part * 4, 3.9999), n = Math.floor(place);
  return STOPS[n].map((low, channel) => Math.round(low + (STOPS[n + 1][channel] - low) * (place - n)));
}
