// The pods, and the filter and order of the list.

const pods = new Map();
// How many pods have a full name.
let podsByName = new Map();
// The filter and the order. The address holds them, so that they can be shared and survive a reload.
const filter = { query: "", healths: new Set(), phases: new Set(), namespace: "", wait: "", long: false, recent: false, sort: "failing" };

function podOf(row) {
  return {
    row,
    key: `${row.namespace}/${row.name}`,
    rank: `${HEALTHS.indexOf(row.health)} ${row.namespace}/${row.name}`,
    searchText: `${row.namespace}/${row.name} ${row.phase} ${row.state} ${row.lifecycle ?? ""} ${row.wait ? `${row.wait.short} ${row.wait.what}` : ""}`.toLowerCase(),
  };
}

// Whether a pod has waited for more than one minute.
const isLongWait = ({ row }) => row.wait?.since !== undefined && row.health !== "finished" && clock.now() - row.wait.since > LONG_WAIT_MS;
// Whether a container was restarted within the last ten minutes.
const isRecentRestart = ({ row }) => row.restarted !== undefined && clock.now() - row.restarted < RECENT_RESTART_MS;

const sortOrders = {
  failing: (a, b) => (a.rank < b.rank ? -1 : 1),
  longest: (a, b) => (a.row.wait?.since ?? Infinity) - (b.row.wait?.since ?? Infinity) || sortOrders.name(a, b),
  restarts: (a, b) => b.row.restarts - a.row.restarts || sortOrders.name(a, b),
  youngest: (a, b) => (b.row.started ?? 0) - (a.row.started ?? 0) || sortOrders.name(a, b),
  name: (a, b) => (a.key < b.key ? -1 : 1),
};

function matchingPods() {
  const words = filter.query.toLowerCase().split(/\s+/).filter(Boolean);
  const matching = [];
  for (const pod of pods.values()) {
    const row = pod.row;
    if (filter.healths.size && !filter.healths.has(row.health)) continue;
    if (filter.phases.size && !filter.phases.has(row.phase)) continue;
    if (filter.namespace && filter.namespace !== row.namespace) continue;
    if (filter.wait && filter.wait !== row.wait?.short) continue;
    if (filter.long && !isLongWait(pod)) continue;
    if (filter.recent && !isRecentRestart(pod)) continue;
    if (!words.every((word) => pod.searchText.includes(word))) continue;
    matching.push(pod);
  }
  return matching.sort(sortOrders[filter.sort] ?? sortOrders.failing);
}

function countPods() {
  const counts = { health: {}, phase: {}, namespaces: new Map(), waits: new Map(), long: 0, recent: 0, active: 0 };
  const increment = (map, key) => map.set(key, (map.get(key) ?? 0) + 1);
  podsByName = new Map();
  for (const pod of pods.values()) {
    const row = pod.row;
    increment(podsByName, pod.key);
    counts.health[row.health] = (counts.health[row.health] ?? 0) + 1;
    counts.phase[row.phase] = (counts.phase[row.phase] ?? 0) + 1;
    increment(counts.namespaces, row.namespace);
    if (row.wait) increment(counts.waits, row.wait.short);
    if (isLongWait(pod)) counts.long += 1;
    if (isRecentRestart(pod)) counts.recent += 1;
    if (row.lifecycle && row.lifecycle !== "finished") counts.active += 1;
  }
  return counts;
}

const isFiltered = () => Boolean(filter.query || filter.healths.size || filter.phases.size || filter.namespace || filter.wait || filter.long || filter.recent);

function writeAddress() {
  const params = new URLSearchParams();
  if (filter.query) params.set("q", filter.query);
  if (filter.healths.size) params.set("health", [...filter.healths].join(","));
  if (filter.phases.size) params.set("phase", [...filter.phases].join(","));
  if (filter.namespace) params.set("namespace", filter.namespace);
  if (filter.wait) params.set("wait", filter.wait);
  if (filter.long) params.set("long", "1");
  if (filter.recent) params.set("restarted", "1");
  if (filter.sort !== "failing") params.set("sort", filter.sort);
  const query = params.toString();
  history.replaceState(history.state, "", `${location.pathname}${query ? `?${query}` : ""}${location.hash}`);
}

function readAddress() {
  const params = new URLSearchParams(location.search);
  const words = (name, allowed) => new Set((params.get(name) ?? "").split(",").filter((word) => allowed.includes(word)));
  filter.query = params.get("q") ?? "";
  filter.healths = words("health", HEALTHS);
  filter.phases = words("phase", PHASES);
  filter.namespace = params.get("namespace") ?? "";
  filter.wait = params.get("wait") ?? "";
  filter.long = params.has("long");
  filter.recent = params.has("restarted");
  filter.sort = params.get("sort") in sortOrders ? params.get("sort") : "failing";
  $("query").value = filter.query;
  $("sort").value = filter.sort;
}
