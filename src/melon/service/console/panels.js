// The panels that answer an operator's questions from one overview of the service.
import { html, useState } from "./htm-preact.js";
import { call, hasKey, usePoll } from "./api.js";
import { Bars, Chart, Heat, dashes } from "./charts.js";
import { NAMES, between, clock, duration, last, none, num, percent, share, signed, times } from "./text.js";

const LOOK = {
  served: { color: "--served" },
  popular: { color: "--popular", dash: [6, 4] },
  frozen: { color: "--frozen", dash: [2, 3] },
  own: { color: "--own", dash: [8, 3] },
};

// Challengers take the colours that are left, in order of their names.
const COLORS = ["--third", "--fourth", "--fifth"];
function looks(names) {
  const others = names.filter((name) => !LOOK[name]).sort();
  return { ...LOOK, ...Object.fromEntries(others.map((name, n) => [name, { color: COLORS[n % 3], dash: n < 3 ? undefined : [6, 4] }])) };
}
const nameOf = (name) => NAMES[name] ?? `challenger ${name}`;

export function Card({ id, title, children, wide }) {
  return html`<section class="card ${id} ${wide ? "wide" : ""}" aria-labelledby=${id}><h2 id=${id}>${title}</h2>${children}</section>`;
}

// A choice of few: radio buttons that look like one bar.
export function Choice({ label, name, value, values, onChange }) {
  return html`<fieldset class="choice"><legend class="hidden">${label}</legend>${Object.entries(values).map(([one, text]) => html`
    <label key=${one}><input type="radio" name=${name} value=${one} checked=${one === value} onChange=${() => onChange(one)} /><span>${text}</span></label>`)}</fieldset>`;
}

const Tile = ({ name, value, note, bad }) => html`<div class="tile ${bad ? "bad" : ""}"><dt>${name}</dt><dd>${value}${note && html` <small>${note}</small>`}</dd></div>`;

// Is it better than doing nothing?

const ofPart = (model, part) => (part === "all" ? model : model?.parts?.[part]) ?? {};

export function verdict(overview) {
  const { quality, part, window_s, since_start: sure } = overview;
  const served = ofPart(quality.models.served, part), popular = ofPart(quality.models.popular, part);
  const where = `${times(served.ranked ?? 0, part === "all" ? "event" : `${part === "repeats" ? "repeated" : part} event`)} of the last ${duration(window_s)}`;
  const ahead = popular.served_ahead;
  if (!ahead) return { word: "Nothing to compare yet", tone: "soft", text: `Nothing was ranked in the ${where}.` };
  const [low, high] = ahead.interval;
  // Better and worse are said by the interval that holds however often the page is looked at.
  const [least, most] = sure.popular?.interval ?? [-1, 1];
  const [word, tone] = least > 0 ? ["Yes, it is better", "good"] : most < 0 ? ["No, it is worse", "bad"] : ["Not sure yet", "soft"];
  const frozen = ofPart(quality.models.frozen, part).served_ahead;
  return {
    word, tone,
    text: `HR@10 is ${share(served["HR@10"])}, recent popularity has ${share(popular["HR@10"])}: ${signed(ahead["HR@10"])} (95 %: ${signed(low)} to ${signed(high)}) on ${where}.`
      + (frozen ? ` Learning adds ${signed(frozen["HR@10"])} (${frozen.interval.map(signed).join(" to ")}) to the model as it was deployed.` : "")
      + ` Since the model began: ${signed(sure.popular["HR@10"])} (${signed(least)} to ${signed(most)}, however often one looks) on ${num(sure.popular.ranked)}.`,
  };
}

function QualityTable({ caption, models }) {
  const look = looks(Object.keys(models)), rows = Object.keys(look).filter((name) => models[name]?.ranked).map((name) => [name, models[name]]);
  return html`<div class="scroll quality" tabindex="0" role="region" aria-label=${caption}><table><caption>${caption}</caption><thead><tr><th scope="col">Model</th><th scope="col">HR@10 <small>95 %</small></th><th scope="col">NDCG@10 <small>95 %</small></th><th scope="col">Events</th><th scope="col">Served ahead <small>95 %</small></th></tr></thead>
    <tbody>${rows.map(([name, model]) => html`<tr key=${name}><th scope="row"><i class="key ${dashes(look[name].dash)}" style=${{ borderColor: `var(${look[name].color})` }}></i>${nameOf(name)}</th>
      <td>${share(model["HR@10"])} <small>${between(model.interval)}</small></td><td>${share(model["NDCG@10"])} <small>${between(model.ndcg_interval)}</small></td><td>${num(model.ranked)}</td>
      <td>${model.served_ahead ? html`<span class=${model.served_ahead.interval[0] > 0 ? "good" : model.served_ahead.interval[1] < 0 ? "bad" : ""}>${signed(model.served_ahead["HR@10"])}</span> <small>${between(model.served_ahead.interval, signed)}</small>` : none}</td></tr>`)}
    ${!rows.length && html`<tr><td colspan="5" class="soft">Nothing was ranked in this window.</td></tr>`}</tbody></table></div>`;
}

export function Quality({ overview, part, setPart, frame }) {
  const [metric, setMetric] = useState("HR@10"), [among, setAmong] = useState("99");
  const { quality } = overview, said = verdict(overview), series = among === "99" ? overview.series : overview.list_series;
  const lines = Object.entries(looks(Object.keys(series))).filter(([name]) => series[name]).map(([name, look]) => ({
    name: nameOf(name), ...look, values: series[name][metric],
    ...(name === "served" ? { low: series[name][`${metric} low`], high: series[name][`${metric} high`] } : {}),
  }));
  const { sampled, all, first } = quality.lists, some = `on a sample of ${percent(sampled)} of the events`;
  const here = Object.fromEntries(Object.entries(quality.models).map(([name, model]) => [name, ofPart(model, part)]));
  return html`<${Card} id="quality" title="Is it better than doing nothing?" wide>
    <p class="verdict"><b class=${said.tone}>${said.word}.</b> ${said.text}</p>
    <div class="row"><${Choice} label="Metric" name="metric" value=${metric} values=${{ "HR@10": "HR@10", "NDCG@10": "NDCG@10" }} onChange=${setMetric} />
      <${Choice} label="Ranked among" name="among" value=${among} values=${{ 99: "among 99 others", all: "whole lists" }} onChange=${setAmong} />
      <${Choice} label="Events" name="part" value=${part} values=${{ all: "all events", organic: "organic", recommended: "recommended", repeats: "repeats" }} onChange=${setPart} /></div>
    ${lines.length ? html`<${Chart} ...${frame} name=${`${metric}${among === "99" ? "" : " of whole lists"}, each event ranked before it is learned`} lines=${lines} format=${share} height=${240} />`
      : html`<p class="note">No event of this kind was ranked in this window. Events are ranked before they are learned, once the model knows enough items.</p>`}
    <${Duels} sure=${overview.since_start} challengers=${overview.status.challengers} />
    <${QualityTable} caption="Ranked among 99 other items" models=${here} />
    <${QualityTable} caption=${`Whole lists of all items, ${some}`} models=${all} />
    <${QualityTable} caption=${`Whole lists without what the user has had, first-time pairs ${some}`} models=${first} />
    <p class="note">${times(quality.events, "event")} came in; ${percent(quality.cold_events)} were on items that nobody had taken before and are not ranked. Recommended means that the service had shown the item to this user. Intervals of a window hold for one look.</p>
  <//>`;
}

// Served model against each challenger: whether that is sure, however often one looks.
function Duels({ sure, challengers }) {
  const [said, setSaid] = useState(""), [asked, setAsked] = useState(null);
  const names = Object.keys(challengers).sort(), words = (name) => (name === "former" ? "Roll back" : "Promote");
  const act = async (name) => {
    if (asked !== name) { setAsked(name); setSaid(name === "former" ? "Serve the former model again? Press once more." : `Serve ${name} from now on? Press once more.`); return; }
    setAsked(null);
    try { setSaid(`Asked for: ${(await call(name === "former" ? "v1/rollback" : `v1/challengers/${name}/promote`, { method: "POST" })).job}`); } catch (error) { setSaid(`${error.message} ${error.hint ?? ""}`); }
  };
  return names.length > 0 && html`<ul class="duels">${names.map((name) => {
    const { interval: [low, high], ranked, ...ahead } = sure[name] ?? { interval: [-1, 1], ranked: 0, "HR@10": 0 };
    const word = low > 0 ? "is better than" : high < 0 ? "is worse than" : "cannot be told from", state = challengers[name];
    return html`<li key=${name}>The served model <b class=${low > 0 ? "good" : high < 0 ? "bad" : ""}>${word}</b> ${name === "former" ? "the former model" : html`challenger <b>${name}</b>`}${ranked ? `: ${signed(ahead["HR@10"])} (${signed(low)} to ${signed(high)}, however often one looks) on ${num(ranked)} events both have ranked.` : "."}
      ${!state.running ? html` <b class="bad">It does not run.</b>` : state.lag > 2000 ? ` It is ${num(state.lag)} events behind.` : ""}${state.share ? ` ${percent(state.share)} of users get its lists; ${state.lists ? percent(state.taken / state.lists) : none} of ${num(state.lists)} were taken from.` : ""}
      ${hasKey() && html` <button onClick=${() => act(name)}>${asked === name ? "Yes, " : ""}${words(name)}<span class="hidden"> ${name}</span></button>`}</li>`;
  })}</ul>${said && html`<p class="note" role="status">${said}</p>`}`;
}

// Is it fresh?

export function Fresh({ overview, frame }) {
  const { freshness, stages_ms: stages, process, status } = overview;
  const bounds = freshness.bounds_s.map((bound) => `≤${duration(bound).replace(".0", "").replace(" ", " ")}`);
  const bars = freshness.events.map((value, n) => ({ name: bounds[n] ?? "more", value }));
  const shown = bars.slice(0, Math.max(bars.findLastIndex((bar) => bar.value) + 1, 6));
  const parts = [["waits for its batch", stages.waits], ["is learned", stages.learned], ["reaches this server", stages.served]];
  const total = parts.reduce((sum, [, ms]) => sum + (ms ?? 0), 0);
  return html`<${Card} id="fresh" title="Is it fresh?">
    <p class="verdict">${status.freshness_s.p95 === null ? "No event has been learned since this server started." : html`An event is in the lists after <b>${duration(status.freshness_s.p50)}</b>, 95 % of them within <b>${duration(status.freshness_s.p95)}</b>.`}</p>
    ${total > 0 && html`<ol class="stages" aria-label="The way of an event, medians">${parts.map(([name, ms], n) => html`<li key=${name} class=${`stage${n}`} style=${{ flexGrow: Math.max(ms / total, 0.04) }}><span>${name}</span> <b>${num(ms, 1)} ms</b></li>`)}</ol>`}
    <h3>From acknowledged to served, events by time</h3>
    <${Bars} name="Events by the time from acknowledged to served" bars=${shown} unit="events" />
    <${Chart} ...${frame} name="Seconds from acknowledged to served" from0 least=${0.01} height=${150} format=${duration}
      lines=${[{ name: "median", color: "--served", values: process.fresh_p50_s }, { name: "95 %", color: "--popular", dash: [6, 4], values: process.fresh_p95_s }]} />
  <//>`;
}

// Is it healthy?

export function Health({ overview, frame, admin }) {
  const { status, process } = overview;
  return html`<${Card} id="health" title="Is it healthy?">
    ${status.alarms.length ? html`<ul class="alarms">${status.alarms.map((text, n) => html`<li key=${text}><b>${text[0].toUpperCase() + text.slice(1)}</b>${status.remedies[n] && html`<br /><span>${status.remedies[n]}</span>`}</li>`)}</ul>`
      : html`<p class="verdict"><b class="good">No alarms.</b></p>`}
    <dl class="tiles">
      <${Tile} name="events posted" value=${num(last(process.posted_s) ?? 0, 1)} note="/s" /><${Tile} name="lists served" value=${num(last(process.lists_s) ?? 0, 1)} note="/s" />
      <${Tile} name="a list takes" value=${last(process.p50_ms) === null ? none : num(last(process.p50_ms), 1)} note=${last(process.p99_ms) === null ? "" : `ms, 99 %: ${num(last(process.p99_ms), 1)}`} />
      <${Tile} name="lag" value=${num(status.lag)} note="events" bad=${status.lag > 5000} /><${Tile} name="quarantined" value=${num(status.quarantined)} note="batches" bad=${status.quarantined > 0} />
      <${Tile} name="lists taken from" value=${status.served.lists ? percent(status.served.taken / status.served.lists) : none} note=${`of ${num(status.served.lists)}`} />
      <${Tile} name="users" value=${num(status.users)} /><${Tile} name="items" value=${num(status.items)} /><${Tile} name="events in the log" value=${num(status.log.events)} />
      <${Tile} name="batch size" value=${num(status.batch_size.median)} note="median" /><${Tile} name="learner starts" value=${num(status.learner.starts)} /><${Tile} name="this server is up" value=${duration(status.uptime_s)} /></dl>
    <${Chart} ...${frame} name="Per second" from0 least=${1} height=${150} lines=${[
      { name: "events posted", color: "--frozen", dash: [2, 3], values: process.posted_s }, { name: "events learned", color: "--served", values: overview.learned_s },
      { name: "lists", color: "--popular", dash: [6, 4], values: process.lists_s }]} />
    <${Chart} ...${frame} name="Milliseconds of a list" none="Nobody asked for a list in this window." from0 least=${1} height=${130} lines=${[
      { name: "median", color: "--served", values: process.p50_ms }, { name: "99 %", color: "--popular", dash: [6, 4], values: process.p99_ms }]} />
    <${Chart} ...${frame} name="Events that wait to be learned" from0 least=${10} height=${110} lines=${[{ name: "lag", color: "--served", values: process.lag }]} />
    ${status.quarantined > 0 && html`<${Quarantined} count=${status.quarantined} admin=${admin} />`}
  <//>`;
}

function Quarantined({ count, admin }) {
  const poll = usePoll(admin === false ? null : "v1/batches?status=quarantined", 10, count);
  const [said, setSaid] = useState("");
  if (admin === false || poll.error?.status === 403) return html`<p class="note">${times(count, "batch", "batches")} quarantined. A key with the scope admin shows why.</p>`;
  const act = async (path, word) => {
    try { setSaid(`${word}: ${(await call(path, { method: "POST" })).job}`); } catch (error) { setSaid(error.message); }
    poll.again();
  };
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Quarantined batches"><table><caption>Quarantined batches</caption><thead><tr><th scope="col">Batch</th><th scope="col">When</th><th scope="col">Events</th><th scope="col">Why</th><th scope="col"><span class="hidden">Action</span></th></tr></thead>
    <tbody>${(poll.data?.batches ?? []).slice(0, 20).map((batch) => html`<tr key=${batch.batch}><th scope="row">${batch.batch}</th><td>${clock(batch.planned)}</td><td>${num(batch.last - batch.first + 1)}</td><td class="long">${batch.reason}</td>
      <td><button onClick=${() => act(`v1/batches/${batch.batch}/retry`, "Retried")}>Retry<span class="hidden"> batch ${batch.batch}</span></button></td></tr>`)}</tbody></table></div>
    <p class="row"><button onClick=${() => act("v1/resume", "Resumed")}>Resume learning</button><span role="status">${said}</span></p>`;
}

// What is it learning?

export function Learning({ session }) {
  const { data: batch, error } = usePoll("v1/learning", 15, session), { data: trends } = usePoll("v1/trends", 15, session);
  return html`<${Card} id="learning" title="What is it learning?">
    ${error && !batch && html`<p class="note">${error.message}</p>`}
    ${batch && (batch.batch === null ? html`<p class="note">${batch.note}</p>` : html`
      <dl class="tiles"><${Tile} name="last batch" value=${num(batch.batch)} note=${times(batch.events, "event")} /><${Tile} name="loss before it" value=${num(batch.loss)} />
        <${Tile} name="rows moved by" value=${num(batch.moved)} /><${Tile} name="ranked, learned in" value=${`${num(batch.predict_ms, 1)}, ${num(batch.learn_ms, 1)}`} note="ms" /></dl>
      <h3>Learning rates of its events</h3>${batch.rates ? html`<${Heat} rates=${batch.rates} />` : html`<p class="note">${batch.note}</p>`}`)}
    ${trends && html`<h3>What rises, what falls</h3>${trends.events + trends.before < 20 ? html`<p class="note">Too few events to tell.</p>` : html`<div class="pair">
      <${Trend} name="Rising" sign="▲" tone="good" lines=${trends.rising} /><${Trend} name="Falling" sign="▼" tone="bad" lines=${trends.falling} /></div>
      <p class="note">The last ${times(trends.events, "event")} beside the ${num(trends.before)} before; only items that differ by two standard errors or more.</p>`}`}
  <//>`;
}

const Trend = ({ name, sign, tone, lines }) => html`<table><caption><span class=${tone} aria-hidden="true">${sign}</span> ${name}</caption><thead><tr><th scope="col">Item</th><th scope="col">before</th><th scope="col">now</th></tr></thead>
  <tbody>${lines.map((line) => html`<tr key=${line.item}><th scope="row"><a href=${`#item=${encodeURIComponent(line.item)}`}>${line.item}</a></th><td>${num(line.before)}</td><td>${num(line.now)}</td></tr>`)}
  ${!lines.length && html`<tr><td colspan="3" class="soft">none</td></tr>`}</tbody></table>`;

// What happened: the vertical lines of the charts, in words.

export function Happened({ overview }) {
  const marks = [...overview.annotations].reverse();
  return html`<${Card} id="happened" title="What happened">${marks.length ? html`<ol class="marks" reversed>${marks.slice(0, 12).map((mark) => html`<li key=${mark.time + mark.text} class=${mark.kind}><time>${clock(mark.time, overview.window_s)}</time> ${mark.text}</li>`)}</ol>
    ${marks.length > 12 && html`<p class="note">and ${marks.length - 12} more in this window.</p>`}` : html`<p class="note">Nothing but plain batches in this window.</p>`}<//>`;
}
