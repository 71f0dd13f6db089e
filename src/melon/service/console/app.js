// The console: one page that says whether the service keeps up, from its public API alone.
import { html, render, useEffect, useState } from "./htm-preact.js";
import { hasKey, setKey, usePoll } from "./api.js";
import { Choice, Fresh, Happened, Health, Learning, Quality } from "./panels.js";
import { Why } from "./why.js";
import { clock, num, times } from "./text.js";

const RANGES = { "15m": "15 min", "1h": "1 h", "6h": "6 h", "24h": "24 h", "7d": "7 d" };
const SECONDS = { "15m": 900, "1h": 3600, "6h": 21600, "24h": 86400, "7d": 604800 };
const THEMES = { auto: "◐", light: "☀", dark: "☾" };

// A service that is younger than half of the range fills the charts with what there is.
function fit(data, seconds) {
  const first = Math.min(data.annotations[0]?.time ?? Infinity, data.time[data.learned_s.findIndex((value) => value !== null)] ?? Infinity);
  const age = 30 * Math.ceil((data.now - first) / 30 + 0.3);
  return age < seconds / 2 ? `${age}s` : null;
}

function state({ data, error }) {
  if (error && error.status !== 429) return ["bad", error.status ? error.message : "The service does not answer"];
  if (!data) return ["soft", "Connecting"];
  const { status } = data;
  if (status.learner.starts && !status.learner.running) return ["bad", "The learner does not run"];
  if (!status.model) return ["warn", "The model is being loaded"];
  if (!status.log.events && !status.model.batch) return ["soft", "Waiting for the first event"];
  if (status.alarms.length) return ["warn", times(status.alarms.length, "alarm")];
  return status.lag > 2000 ? ["warn", `Catching up, ${num(status.lag)} events behind`] : ["good", "Learning"];
}

function useTheme() {
  const [theme, setTheme] = useState("auto"), [dark, setDark] = useState(matchMedia("(prefers-color-scheme: dark)").matches);
  useEffect(() => {
    const query = matchMedia("(prefers-color-scheme: dark)"), listen = () => setDark(query.matches);
    query.addEventListener("change", listen);
    return () => query.removeEventListener("change", listen);
  }, []);
  document.documentElement.dataset.theme = theme === "auto" ? (dark ? "dark" : "light") : theme;
  return [theme, setTheme, document.documentElement.dataset.theme];
}

// The address that `melon serve` prints has a key behind its #: it is taken out of the address at once.
const given = location.hash.match(/[#&]key=([^&]*)/);
if (given) { setKey(decodeURIComponent(given[1])); history.replaceState(null, "", location.pathname); }

function App() {
  const [range, setRange] = useState(Object.keys(RANGES).find((one) => location.hash.includes(`range=${one}`)) ?? "15m"), [part, setPart] = useState("all");
  const [session, setSession] = useState(0), [asks, setAsks] = useState(false), [theme, setTheme, shown] = useTheme();
  const [fitted, setFitted] = useState(null), points = innerWidth < 700 ? 45 : 90;
  const poll = usePoll(`v1/overview?window=${fitted ?? range}&points=${points}&part=${part}`, SECONDS[range] <= 900 ? 4 : 10, session);
  const [tone, words] = state(poll), { data } = poll;
  useEffect(() => { if (data) setFitted(fit(data, SECONDS[range])); }, [data, range]);
  const signIn = (key) => { setKey(key); setAsks(false); setSession(session + 1); };
  useEffect(() => { document.title = `${words} · melon`; }, [words]);
  const locked = asks || poll.error?.status === 401;
  const frame = data && { time: data.time, span: [data.now - data.window_s, data.now], marks: data.annotations, theme: shown };
  return html`<a class="skip" href="#main">Skip to the content</a>
    <header><h1><img src="console/melon.svg" alt="" width="26" height="26" />melon</h1>
      <p class="pill ${tone}" role="status">${words}</p>
      ${data?.status.model && !locked && html`<p class="model"><b>${data.status.model.recommender}</b> with <b>${data.status.model.strategy}</b> <span class="soft">${data.status.model.version}, batch ${num(data.status.model.batch)}</span></p>`}
      <nav aria-label="Console">${!locked && html`<${Choice} label="Time range of all charts" name="range" value=${range} values=${RANGES} onChange=${(one) => { history.replaceState(null, "", `#range=${one}`); setRange(one); }} />`}
        <${Choice} label="Colours" name="theme" value=${theme} values=${Object.fromEntries(Object.entries(THEMES).map(([name, sign]) => [name, html`<span title=${`${name} colours`}><span aria-hidden="true">${sign}</span><span class="hidden">${name}</span></span>`]))} onChange=${setTheme} />
        <a href="docs">API</a>${hasKey() ? html`<button onClick=${() => signIn(null)}>Sign out</button>` : poll.error?.status !== 401 && html`<button onClick=${() => setAsks(!asks)}>${asks ? "Back" : "Sign in"}</button>`}</nav></header>
    <main id="main" tabindex="-1">${locked ? html`<${SignIn} error=${hasKey() ? poll.error : null} onKey=${signIn} />`
      : !data ? html`<p class="wait">${poll.error ? `${poll.error.message} ${poll.error.hint ?? ""}` : "Asking the service…"}</p>`
      : html`${poll.error && html`<p class="stale" role="alert">${poll.error.message} What is shown is from ${clock(data.now)}.</p>`}
        ${!data.status.log.events && !data.quality.events && html`<${Start} />`}
        <div class="grid"><${Quality} overview=${data} part=${part} setPart=${setPart} frame=${frame} /><div class="stack"><${Fresh} overview=${data} frame=${frame} /><${Happened} overview=${data} /></div>
          <${Health} overview=${data} frame=${frame} /><${Learning} session=${session} /><${Why} session=${session} /></div>`}</main>
    <footer>Data from <a href="docs">the public API</a> of this service only${data ? ` · last look ${clock(data.now)}` : ""}</footer>`;
}

function SignIn({ error, onKey }) {
  const [key, setText] = useState("");
  return html`<form class="card signin" onSubmit=${(event) => { event.preventDefault(); onKey(key.trim()); }}><h2>Sign in</h2>
    <p>A key with the scope <b>read</b> shows the console; <b>admin</b> also shows people’s events and quarantined batches, and promotes. Make one with <code>melon keys add --scope read</code>. On the service’s own machine, the content of <code>admin.token</code> in its folder is a key for administration.</p>
    <label>Key <input type="password" autocomplete="off" required value=${key} onInput=${(event) => setText(event.currentTarget.value)} placeholder="mk_…" autofocus /></label>
    <button class="main">Sign in</button>${error && html`<p class="bad" role="alert">${error.message}</p>`}
    <p class="note">The key stays in this page’s memory and is gone when it is closed or loaded again.</p></form>`;
}

function Start() {
  const [said, setSaid] = useState("");
  const key = hasKey() ? ` \\\n  -H 'Authorization: Bearer mk_…'` : "";
  const post = `curl -X POST ${location.origin}${location.pathname}v1/interactions${key} \\\n  -H 'Content-Type: application/json' \\\n  -d '[{"user": "u17", "item": "i23"}, {"user": "u17", "item": "i4"}, {"user": "u2", "item": "i23"}]'`;
  const copy = async () => { try { await navigator.clipboard.writeText(post); setSaid("Copied."); } catch { setSaid("Mark the text and copy it."); } };
  return html`<section class="card begin" aria-labelledby="start"><h2 id="start">Nothing has been posted yet. Begin here:</h2>
    <ol><li><p>Post who took what. An event needs a user and an item; time, type and an id of its own are optional.</p><pre tabindex="0">${post}</pre><p class="row"><button onClick=${copy}>Copy</button><span role="status">${said}</span></p></li>
      <li><p>Ask for a list. It knows the events above within a second.</p><pre tabindex="0">curl ${location.origin}${location.pathname}v1/recommendations/u2?k=5</pre></li>
      <li><p>Watch this page: it fills by itself. <a href="docs">The API reference</a> has every route; <code>melon serve --demo</code> shows a made-up news site.</p></li></ol></section>`;
}

render(html`<${App} />`, document.getElementById("app"));
