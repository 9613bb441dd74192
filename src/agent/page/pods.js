// What is known of the pods, and which of them are wanted to be seen.

const pods = new Map();
// How many of them have a name.
let namesakes = new Map();
// What is asked for; kept in the address, so that it can be shared and outlives a reload.
const wish = { query: "", healths: new Set(), phases: new Set(), namespace: "", wait: "", long: false, recent: false, sort: "failing" };

function known(row) {
  return {
    row,
    key: `${row.namespace}/${row.name}`,
    rank: `${HEALTHS.indexOf(row.health)} ${row.namespace}/${row.name}`,
    hay: `${row.namespace}/${row.name} ${row.phase} ${row.state} ${row.lifecycle ?? ""} ${row.wait ? `${row.wait.short} ${row.wait.what}` : ""}`.toLowerCase(),
  };
}

const isLong = ({ row }) => row.wait?.since !== undefined && row.health !== "finished" && clock.now() - row.wait.since > LONG;
const isRecent = ({ row }) => row.restarted !== undefined && clock.now() - row.restarted < RECENT;

const orders = {
  failing: (a, b) => (a.rank < b.rank ? -1 : 1),
  longest: (a, b) => (a.row.wait?.since ?? Infinity) - (b.row.wait?.since ?? Infinity) || orders.name(a, b),
  restarts: (a, b) => b.row.restarts - a.row.restarts || orders.name(a, b),
  young: (a, b) => (b.row.born ?? 0) - (a.row.born ?? 0) || orders.name(a, b),
  name: (a, b) => (a.key < b.key ? -1 : 1),
};

function wanted() {
  const words = wish.query.toLowerCase().split(/\s+/).filter(Boolean);
  const all = [];
  for (const pod of pods.values()) {
    const row = pod.row;
    if (wish.healths.size && !wish.healths.has(row.health)) continue;
    if (wish.phases.size && !wish.phases.has(row.phase)) continue;
    if (wish.namespace && wish.namespace !== row.namespace) continue;
    if (wish.wait && wish.wait !== row.wait?.short) continue;
    if (wish.long && !isLong(pod)) continue;
    if (wish.recent && !isRecent(pod)) continue;
    if (!words.every((word) => pod.hay.includes(word))) continue;
    all.push(pod);
  }
  return all.sort(orders[wish.sort] ?? orders.failing);
}

function tally() {
  const sum = { health: {}, phase: {}, namespaces: new Map(), waits: new Map(), long: 0, recent: 0, active: 0 };
  const more = (map, key) => map.set(key, (map.get(key) ?? 0) + 1);
  namesakes = new Map();
  for (const pod of pods.values()) {
    const row = pod.row;
    more(namesakes, pod.key);
    sum.health[row.health] = (sum.health[row.health] ?? 0) + 1;
    sum.phase[row.phase] = (sum.phase[row.phase] ?? 0) + 1;
    more(sum.namespaces, row.namespace);
    if (row.wait) more(sum.waits, row.wait.short);
    if (isLong(pod)) sum.long += 1;
    if (isRecent(pod)) sum.recent += 1;
    if (row.lifecycle && row.lifecycle !== "finished") sum.active += 1;
  }
  return sum;
}

const isWished = () => Boolean(wish.query || wish.healths.size || wish.phases.size || wish.namespace || wish.wait || wish.long || wish.recent);

function remember() {
  const params = new URLSearchParams();
  if (wish.query) params.set("q", wish.query);
  if (wish.healths.size) params.set("health", [...wish.healths].join(","));
  if (wish.phases.size) params.set("phase", [...wish.phases].join(","));
  if (wish.namespace) params.set("namespace", wish.namespace);
  if (wish.wait) params.set("wait", wish.wait);
  if (wish.long) params.set("long", "1");
  if (wish.recent) params.set("restarted", "1");
  if (wish.sort !== "failing") params.set("sort", wish.sort);
  const query = params.toString();
  history.replaceState(history.state, "", `${location.pathname}${query ? `?${query}` : ""}${location.hash}`);
}

function recall() {
  const params = new URLSearchParams(location.search);
  const some = (name, all) => new Set((params.get(name) ?? "").split(",").filter((word) => all.includes(word)));
  wish.query = params.get("q") ?? "";
  wish.healths = some("health", HEALTHS);
  wish.phases = some("phase", PHASES);
  wish.namespace = params.get("namespace") ?? "";
  wish.wait = params.get("wait") ?? "";
  wish.long = params.has("long");
  wish.recent = params.has("restarted");
  wish.sort = params.get("sort") in orders ? params.get("sort") : "failing";
  $("query").value = wish.query;
  $("sort").value = wish.sort;
}
