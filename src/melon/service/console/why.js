// Why this? A user or an item typed in: history, list, why each item is there, and what is similar.
import { html, useEffect, useState } from "./htm-preact.js";
import { call } from "./api.js";
import { Card } from "./panels.js";
import { clock, none, num, times } from "./text.js";

const WHY = { model: "by the model", popular: "popular now", history: "from the visit", similar: "similar", boosted: "boosted by a rule", pinned: "pinned by a rule", "shown before": "shown before" };
const at = (id) => encodeURIComponent(id);
const soft = (promise) => promise.catch((error) => ({ error }));

export function Why({ session }) {
  const [wanted, setWanted] = useState({ user: "", item: "" }), [found, setFound] = useState(null), [busy, setBusy] = useState(false);
  const ask = async ({ user, item }) => {
    if (!user && !item) return;
    setBusy(true);
    const [list, history, reason, similar, facts] = await Promise.all([
      user && soft(call(`v1/recommendations/${at(user)}?k=10&preview=true`)), user && soft(call(`v1/users/${at(user)}/history?limit=12`)),
      user && item && soft(call(`v1/explain/${at(user)}/${at(item)}`)), item && soft(call(`v1/similar/${at(item)}?k=8`)), item && soft(call(`v1/items/${at(item)}`)),
    ]);
    setFound({ user, item, list, history, reason, similar, facts });
    setBusy(false);
  };
  const look = (next) => { setWanted(next); ask(next); };
  useEffect(() => {
    const follow = () => {
      const [, item] = location.hash.match(/[#&]item=([^&]*)/) ?? [];
      if (item) {
        look({ user: "", item: decodeURIComponent(item) });
        document.getElementById("why")?.scrollIntoView();
        document.getElementById("why-item")?.focus();
      }
    };
    addEventListener("hashchange", follow);
    follow();
    return () => removeEventListener("hashchange", follow);
  }, [session]);
  const input = (name) => (event) => setWanted({ ...wanted, [name]: event.currentTarget.value.trim() });
  return html`<${Card} id="why" title="Why this?" wide>
    <form class="row" onSubmit=${(event) => { event.preventDefault(); ask(wanted); }}>
      <label>User <input id="why-user" autocomplete="off" spellcheck=${false} maxlength="256" value=${wanted.user} onInput=${input("user")} placeholder="u17" /></label>
      <label>Item <input id="why-item" autocomplete="off" spellcheck=${false} maxlength="256" value=${wanted.item} onInput=${input("item")} placeholder="i23" /></label>
      <button class="main" disabled=${busy || (!wanted.user && !wanted.item)}>Look</button>
      <span role="status" class="soft">${busy ? "Looking…" : found ? "" : "Type a user to see history and list, an item to see what is similar, both to see why."}</span></form>
    ${found && html`<div class="thirds">${found.user && html`<${List} ...${found} look=${look} /><${History} ...${found} look=${look} />`}${found.reason && html`<${Reason} ...${found} />`}${found.item && html`<${Similar} ...${found} look=${look} />`}</div>`}
  <//>`;
}

const Failed = ({ error }) => html`<p class="note">${error.status === 403 ? "A key with the scope admin is needed for this." : error.message}</p>`;
const Link = ({ text, look }) => html`<button class="link" onClick=${look}>${text}</button>`;

function List({ user, list, look }) {
  if (list.error) return html`<div><h3>List for ${user}</h3><${Failed} error=${list.error} /></div>`;
  const most = Math.max(...list.items.map((one) => Math.abs(one.score ?? 0)), 1e-9);
  return html`<div><h3>List for ${user}</h3><p class="note">${list.source === "model" ? `Made by ${list.model.recommender} with ${list.model.strategy} at batch ${num(list.model.batch)}.` : `Made from: ${list.source}. The model does not know this user yet.`} ${Object.entries(list.filtered).filter(([, count]) => count).map(([why, count]) => `${num(count)} left out (${why})`).join(", ")}</p>
    <table><thead><tr><th scope="col">#</th><th scope="col">Item</th><th scope="col">Score</th><th scope="col">Why</th></tr></thead><tbody>${list.items.map((one, n) => html`<tr key=${one.item}><td>${n + 1}</td><th scope="row"><${Link} text=${one.item} look=${() => look({ user, item: String(one.item) })} /></th>
      <td><span class="meter" style=${{ width: `${(40 * Math.max(one.score ?? 0, 0)) / most}px` }}></span>${num(one.score)}</td><td>${WHY[one.why] ?? one.why}</td></tr>`)}</tbody></table></div>`;
}

function History({ user, history, reason, look }) {
  if (history.error) return html`<div><h3>Last events of ${user}</h3><${Failed} error=${history.error} /></div>`;
  const moved = new Set(reason?.user_events ?? []);
  return html`<div><h3>Last events of ${user}</h3>${history.events.length ? html`<table><thead><tr><th scope="col">Item</th><th scope="col">Type</th><th scope="col">When</th></tr></thead><tbody>${history.events.map((event) => html`<tr key=${event.offset}><th scope="row"><${Link} text=${event.item} look=${() => look({ user, item: String(event.item) })} /></th><td>${event.type}${moved.has(event.offset) ? " · moved the user’s row" : ""}</td><td>${clock(event.time, Infinity)}</td></tr>`)}</tbody></table>` : html`<p class="note">The log has no event of this user.</p>`}</div>`;
}

function Reason({ user, item, reason }) {
  if (reason.error) return html`<div><h3>Why ${item} for ${user}</h3><${Failed} error=${reason.error} /></div>`;
  return html`<div><h3>Why ${item} for ${user}</h3><p class="verdict">Place <b>${num(reason.rank)}</b> of ${num(reason.items)} for this user; by popularity alone it is at place <b>${num(reason.popularity_rank)}</b>.${reason.seen ? " The user has had it, so lists leave it out." : ""}</p>
    <table><caption>Its score, ${num(reason.score)}, in parts</caption><tbody>${Object.entries(reason.parts).map(([name, value]) => html`<tr key=${name}><th scope="row">${name.replaceAll("_", " ")}</th><td>${num(value)}</td></tr>`)}</tbody></table>
    ${reason.because.length ? html`<p class="note">Most similar of what the user had: ${reason.because.map((one) => `${one.item} (${num(one.similarity, 2)})`).join(", ")}.</p>` : ""}
    <p class="note">${times(reason.item_events, "event")} moved the item’s row, ${times(reason.user_events.length, "recent event")} the user’s${reason.user_events.length ? ` (offsets ${reason.user_events.slice(0, 6).join(", ")}${reason.user_events.length > 6 ? ", …" : ""})` : ""}.</p></div>`;
}

function Similar({ item, similar, facts, look }) {
  const known = facts && !facts.error;
  return html`<div><h3>Similar to ${item}</h3>${known && html`<p class="note">${[facts.categories.join(", "), facts.available ? "" : "not available", ...Object.entries(facts.attributes).map(([name, value]) => `${name}: ${value}`)].filter(Boolean).join(" · ") || none}</p>`}
    ${similar.error ? html`<${Failed} error=${similar.error} />` : html`<table><thead><tr><th scope="col">Item</th><th scope="col">Similarity</th></tr></thead><tbody>${similar.items.map((one) => html`<tr key=${one.item}><th scope="row"><${Link} text=${one.item} look=${() => look({ user: "", item: String(one.item) })} /></th><td>${num(one.score)}</td></tr>`)}</tbody></table>`}</div>`;
}
