// The API reference, made from the service's own OpenAPI document.
import { html, render, useEffect, useState } from "./htm-preact.js";
import { call } from "./api.js";

const METHODS = ["get", "post", "put", "patch", "delete"];
const tick = (text) => (text ?? "").split("`").map((part, n) => (n % 2 ? html`<code>${part}</code>` : part));

function App() {
  const [document_, setDocument] = useState(null), [error, setError] = useState(null);
  useEffect(() => { call("openapi.json").then(setDocument, setError); }, []);
  document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const tags = {};
  for (const [path, entry] of Object.entries(document_?.paths ?? {})) {
    for (const method of METHODS.filter((one) => entry[one])) (tags[entry[method].tags?.[0] ?? "other"] ??= []).push({ path, method, ...entry[method] });
  }
  useEffect(() => { if (document_ && location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView(); }, [document_]);
  return html`<a class="skip" href="#main">Skip to the content</a>
    <header><h1><img src="console/melon.svg" alt="" width="26" height="26" />melon API</h1><p class="model soft">${document_ ? `version ${document_.info.version}` : ""}</p>
      <nav aria-label="Pages"><a href="./">Console</a><a href="openapi.json">OpenAPI document</a></nav></header>
    <main id="main" tabindex="-1">${error ? html`<p class="wait">${error.message}</p>` : !document_ ? html`<p class="wait">Reading the OpenAPI document…</p>` : html`<div class="reference">
      <aside><nav aria-label="Routes">${Object.entries(tags).map(([tag, routes]) => html`<h2>${tag}</h2><ul>${routes.map((route) => html`<li key=${route.operationId}><a href=${`#${route.operationId}`}><span class="method ${route.method}">${route.method.toUpperCase()}</span>${route.path}</a></li>`)}</ul>`)}<h2>shapes</h2><ul>${Object.keys(document_.components.schemas).map((name) => html`<li key=${name}><a href=${`#shape-${name}`}>${name}</a></li>`)}</ul></nav></aside>
      <div><section class="card"><h2>About</h2><p>${tick(document_.info.description)}</p></section>
        ${Object.values(tags).flat().map((route) => html`<${Operation} key=${route.operationId} route=${route} shapes=${document_.components.schemas} />`)}
        ${Object.entries(document_.components.schemas).map(([name, shape]) => html`<section class="card" key=${name} id=${`shape-${name}`} aria-labelledby=${`h-${name}`}><h2 id=${`h-${name}`}>${name}</h2><p>${tick(shape.description)}</p><${Fields} name=${name} shape=${shape} /></section>`)}</div></div>`}</main>`;
}

function Operation({ route, shapes }) {
  const body = Object.entries(route.requestBody?.content ?? {});
  const example = body.map(([kind, content]) => exampleOf(content, shapes) && [kind, exampleOf(content, shapes)]).find(Boolean);
  const query = (route.parameters ?? []).filter((one) => one.in === "path").reduce((path, one) => path.replace(`{${one.name}}`, one.examples ? Object.values(one.examples)[0]?.value ?? one.schema?.examples?.[0] ?? one.name : one.schema?.examples?.[0] ?? one.example ?? one.name), route.path);
  const lines = [`curl${route.method === "get" ? "" : ` -X ${route.method.toUpperCase()}`} '${location.origin}${location.pathname.replace(/\/docs$/, "")}${query}'`, route["x-scope"] && `-H 'Authorization: Bearer mk_…'`, example && `-H 'Content-Type: ${example[0]}'`, example && `-d '${JSON.stringify(example[1])}'`];
  return html`<section class="card" id=${route.operationId} aria-labelledby=${`h-${route.operationId}`}><h2 id=${`h-${route.operationId}`}><span class="method ${route.method}">${route.method.toUpperCase()}</span><code>${route.path}</code></h2>
    <p>${tick(route.description ?? route.summary)}</p><p class="note">${route["x-scope"] ? html`Needs a key with the scope <b>${route["x-scope"]}</b>, where the service has keys.` : "Needs no key."}</p>
    ${route.parameters?.length ? html`<table><caption>Parameters</caption><thead><tr><th scope="col">Name</th><th scope="col">In</th><th scope="col">Type</th><th scope="col">About</th></tr></thead><tbody>${route.parameters.map((one) => html`<tr key=${one.name}><th scope="row"><code>${one.name}</code>${one.required ? html` <small>required</small>` : ""}</th><td>${one.in}</td><td>${typeOf(one.schema)}</td><td>${tick(one.description)}${one.schema?.default !== undefined ? html` <small>Default: ${JSON.stringify(one.schema.default)}</small>` : ""}</td></tr>`)}</tbody></table>` : ""}
    ${body.length ? html`<p>Body: ${body.map(([kind, content], n) => html`${n ? ", " : ""}<code>${kind}</code> ${typeOf(content.schema)}`)}</p>` : ""}
    <pre tabindex="0" aria-label="Example">${lines.filter(Boolean).join(" \\\n  ")}</pre>
    <table><caption>Answers</caption><tbody>${Object.entries(route.responses).map(([code, answer]) => html`<tr key=${code}><th scope="row">${code}</th><td>${tick(answer.description)}</td><td>${Object.entries(answer.content ?? {}).map(([kind, content]) => html`<code>${kind}</code> ${typeOf(content.schema)}`)}</td></tr>`)}</tbody></table></section>`;
}

function exampleOf(content, shapes) {
  const shape = content.schema?.$ref ? shapes[content.schema.$ref.split("/").pop()] : content.schema;
  return content.example ?? shape?.examples?.[0] ?? Object.values(content.examples ?? {})[0]?.value;
}

function Fields({ name, shape }) {
  const fields = Object.entries(shape.properties ?? {});
  return fields.length ? html`<table><caption class="hidden">Fields of ${name}</caption><thead><tr><th scope="col">Field</th><th scope="col">Type</th><th scope="col">About</th></tr></thead><tbody>${fields.map(([field, one]) => html`<tr key=${field}><th scope="row"><code>${field}</code>${shape.required?.includes(field) ? html` <small>required</small>` : ""}</th><td>${typeOf(one)}</td><td>${tick(one.description)}</td></tr>`)}</tbody></table>` : "";
}

function typeOf(schema) {
  if (!schema) return "";
  if (schema.$ref) {
    const name = schema.$ref.split("/").pop();
    return html`<a href=${`#shape-${name}`}>${name}</a>`;
  }
  const several = schema.anyOf ?? schema.oneOf;
  if (several) return several.map((one, n) => html`${n ? " or " : ""}${typeOf(one)}`);
  if (schema.enum || schema.const) return (schema.enum ?? [schema.const]).map((one) => JSON.stringify(one)).join(" or ");
  if (schema.type === "array") return html`list of ${typeOf(schema.items)}`;
  return [schema.type ?? "anything", bounds(schema)].filter(Boolean).join(" ");
}

function bounds({ minimum, maximum, maxLength, pattern }) {
  if (minimum !== undefined || maximum !== undefined) return `${minimum ?? ""}…${maximum > 1e15 ? "" : maximum ?? ""}`;
  return pattern ? `like ${pattern}` : maxLength ? `≤ ${maxLength}` : "";
}

render(html`<${App} />`, document.getElementById("app"));
