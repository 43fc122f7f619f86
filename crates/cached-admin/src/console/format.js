// Numbers, times and foreign text as people read them. A missing value is a dash.

export const NONE = "–";

// Between a number and its unit: a space at which no line ends.
const NBSP = "\u00a0";

const missing = (n) => !Number.isFinite(n);

// Three significant digits, without an exponent.
function digits(n) {
  const size = Math.abs(n);
  return size >= 99.95 || n === 0 ? n.toFixed(0) : size >= 9.995 ? n.toFixed(1) : n.toFixed(2);
}

function scaled(n, base, units) {
  let unit = 0;
  while (Math.abs(n) >= base * 0.9995 && unit < units.length - 1) {
    n /= base;
    unit += 1;
  }
  return `${unit === 0 && Number.isInteger(n) ? n : digits(n)}${units[unit] && NBSP + units[unit]}`;
}

export const bytes = (n) => (missing(n) ? NONE : scaled(n, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]));

export function count(n) {
  if (missing(n)) return NONE;
  return Math.abs(n) < 100000
    ? Math.round(n).toString().replace(/\B(?=(\d{3})+$)/g, ",")
    : scaled(n, 1000, ["", "k", "M", "G", "T", "P"]);
}

export function rate(n) {
  if (missing(n)) return NONE;
  return n > 0 && n < 99.5 ? digits(n) : count(n);
}

export function seconds(s) {
  if (missing(s)) return NONE;
  if (s === 0) return `0${NBSP}s`;
  if (s < 1e-6) return `${digits(s * 1e9)}${NBSP}ns`;
  if (s < 0.0009995) return `${digits(s * 1e6)}${NBSP}µs`;
  if (s < 0.9995) return `${digits(s * 1e3)}${NBSP}ms`;
  return s < 120 ? `${digits(s)}${NBSP}s` : age(s);
}

// Rounds down above 99.9 %, so that only all is 100 %.
export function percent(r) {
  if (missing(r)) return NONE;
  if (r > 0.999 && r < 1) return `${(Math.floor(r * 10000) / 100).toFixed(2)}${NBSP}%`;
  return `${(r * 100).toFixed(r > 0 && r < 0.01 ? 2 : 1)}${NBSP}%`;
}

export function age(s) {
  if (missing(s)) return NONE;
  s = Math.max(0, Math.round(s));
  const [d, h, m] = [Math.floor(s / 86400), Math.floor(s / 3600) % 24, Math.floor(s / 60) % 60];
  if (d) return `${d} d ${h} h`;
  if (h) return `${h} h ${m} min`;
  return m ? `${m} min ${s % 60} s` : `${s} s`;
}

const two = (n) => String(n).padStart(2, "0");

export function clock(time, withSeconds = true) {
  if (missing(time)) return NONE;
  const at = new Date(time * 1000);
  return two(at.getHours()) + ":" + two(at.getMinutes()) + (withSeconds ? ":" + two(at.getSeconds()) : "");
}

export function day(time) {
  if (missing(time)) return NONE;
  const at = new Date(time * 1000);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(time)}`;
}

// Foreign text, with every character written out that a reader would not see or that would move others.
export function printable(text, longest = 200) {
  const letters = Array.from(String(text));
  const shown = letters.slice(0, longest).map((letter) => {
    if (!/[\p{C}\p{Zl}\p{Zp}\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0]/u.test(letter)) return letter;
    const code = letter.codePointAt(0);
    return code < 256 ? "\\x" + code.toString(16).padStart(2, "0") : `\\u{${code.toString(16)}}`;
  });
  return shown.join("") + (letters.length > longest ? "…" : "");
}

// A foreign name, in a row or a sentence.
export const short = (name) => printable(name, 60);
