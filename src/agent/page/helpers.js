// Helpers for elements, times and plurals. Text enters the document as text, never as markup.

const $ = (id) => document.getElementById(id);

// Creates an element with properties and children. A child that is not a node becomes text.
function el(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== undefined && child !== null && child !== false));
  return element;
}

const glyph = () => el("span", { className: "glyph", ariaHidden: "true" });

function setText(node, value) {
  if (node.textContent !== value) node.textContent = value;
}

// The agent's clock, estimated from its messages. It stops while the connection is lost.
const clock = {
  ahead: 0,
  stopped: undefined,
  set(now) { this.ahead = now - Date.now(); this.stopped = undefined; },
  stop() { this.stopped ??= this.now(); },
  now() { return this.stopped ?? Date.now() + this.ahead; },
};

// A duration in at most two units, as the command line prints it.
function duration(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  const m = Math.floor(s / 60), h = Math.floor(s / 3600), d = Math.floor(s / 86400);
  const two = (a, x, b, y) => (b ? `${a}${x}${b}${y}` : `${a}${x}`);
  if (s < 120) return `${s}s`;
  if (m < 10) return two(m, "m", s % 60, "s");
  if (m < 180) return `${m}m`;
  if (h < 8) return two(h, "h", m % 60, "m");
  if (h < 48) return `${h}h`;
  if (d < 8) return two(d, "d", h % 24, "h");
  if (d < 730) return `${d}d`;
  return `${Math.floor(d / 365)}y`;
}

const ago = (at) => `${duration(clock.now() - at)} ago`;
const timeOfDay = (at, withMillis) => {
  const date = new Date(at);
  const two = (n, width = 2) => String(n).padStart(width, "0");
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return withMillis ? `${time}.${two(date.getMilliseconds(), 3)}` : time;
};
const plural = (n, one, many = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

// Elements with an age or a remaining time, which one timer updates. `data-since` or `data-until` holds milliseconds.
function ageElement(props, kind, at) {
  const element = el("span", props);
  element.dataset[kind] = at;
  updateAge(element);
  return element;
}
function updateAge(element) {
  const { since, until, words } = element.dataset;
  if (since) setText(element, (words ?? "#").replace("#", duration(clock.now() - since)));
  else if (until) {
    const left = until - clock.now();
    setText(element, left > 0 ? `${duration(left + 999)} left` : "due now");
  }
}

// The health of a pod, the worst first.
const HEALTHS = ["failing", "waiting", "healthy", "finished"];
const PHASES = ["Pending", "Running", "Succeeded", "Failed", "Unknown"];
const LONG_WAIT_MS = 60_000;
const RECENT_RESTART_MS = 600_000;

// Light, dark or the system's theme. The choice is stored if the browser permits it.
const theme = {
  all: ["system", "light", "dark"],
  read() { try { return localStorage.getItem("theme") ?? "system"; } catch { return "system"; } },
  show(choice) {
    if (choice === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = choice;
    $("theme").replaceChildren(el("span", { className: "wide" }, "Theme: "), choice);
    $("theme").ariaLabel = `Theme: ${choice}`;
  },
  next() {
    const choice = this.all[(this.all.indexOf(this.read()) + 1) % this.all.length];
    try { localStorage.setItem("theme", choice); } catch { /* The choice lasts until the page is closed. */ }
    this.show(choice);
  },
};
theme.show(theme.read());
$("theme").addEventListener("click", () => theme.next());
