// Talks to the service's public API. A key lives in this module only: it is never stored, and gone with the page.
import { useEffect, useRef, useState } from "./htm-preact.js";

let key = null;
export const setKey = (text) => { key = text || null; };
export const hasKey = () => key !== null;

export class ApiError extends Error {
  constructor(status, problem) {
    super(problem?.message ?? (status ? `The service answered ${status}.` : "The service does not answer."));
    this.status = status;
    this.code = problem?.code;
    this.hint = problem?.hint;
  }
}

export async function call(path, { method = "GET", signal } = {}) {
  let response;
  try {
    const headers = key ? { Authorization: `Bearer ${key}` } : {};
    response = await fetch(path, { method, headers, signal, cache: "no-store", credentials: "omit" });
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    throw new ApiError(0);
  }
  let content = null;
  try { content = await response.json(); } catch { /* the status says enough */ }
  if (!response.ok) throw new ApiError(response.status, content?.error);
  return content;
}

// Asks again and again while the page is visible; the last answer stays when a later one fails.
export function usePoll(path, seconds, session) {
  const [state, setState] = useState({ data: null, error: null, path: null });
  const again = useRef(() => {});
  useEffect(() => {
    if (!path) return undefined;
    const stop = new AbortController();
    let timer = 0, running = false, failures = 0;
    const ask = async () => {
      clearTimeout(timer);
      if (running || document.hidden) return;
      running = true;
      try {
        const data = await call(path, { signal: stop.signal });
        failures = 0;
        setState({ data, error: null, path });
      } catch (error) {
        if (stop.signal.aborted) return;
        failures += 1;
        setState((before) => ({ ...before, error }));
        if (error.status === 401 || error.status === 403) return;
      } finally {
        running = false;
      }
      timer = setTimeout(ask, 1000 * Math.min(seconds * 2 ** Math.min(failures, 3), 30));
    };
    again.current = ask;
    document.addEventListener("visibilitychange", ask);
    ask();
    return () => {
      stop.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", ask);
    };
  }, [path, seconds, session]);
  return { ...state, again: () => again.current() };
}
