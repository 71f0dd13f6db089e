// Numbers and moments in words, the same on every panel.
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const NAMES = { served: "served model", popular: "recent popularity", frozen: "frozen start", own: "own history", former: "former model" };
export const none = "–";

export function num(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return none;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1000) return whole.format(value);
  if (size >= 100 || Number.isInteger(value)) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  return size >= 0.001 ? value.toFixed(digits) : value.toExponential(1);
}

export const share = (value) => (value === null || value === undefined ? none : value.toFixed(3));
export const signed = (value) => (value > 0 ? "+" : value < 0 ? "−" : "±") + Math.abs(value).toFixed(3);
export const between = (pair, each = share) => (pair ? `${each(pair[0])}${each === share ? "–" : " … "}${each(pair[1])}` : "");
export const percent = (value) => `${(100 * value).toFixed(value < 0.1 ? 1 : 0)} %`;

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return none;
  if (seconds < 1) return `${num(1000 * seconds, 1)} ms`;
  if (seconds < 120) return `${num(seconds, 1)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

export function clock(seconds, window = 0) {
  const moment = new Date(1000 * seconds);
  const time = moment.toLocaleTimeString("en-GB");
  return window > 86400 ? `${moment.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${time.slice(0, 5)}` : time;
}

export const last = (values) => values?.findLast((value) => value !== null && value !== undefined) ?? null;
export const times = (count, one, many = `${one}s`) => `${num(count)} ${count === 1 ? one : many}`;
