// The list of pods. Only visible rows exist as elements, however many pods there are. Elements are positioned and never
// reordered, and one animation frame draws the result of any number of messages.

const OVERSCAN = 6;
// A changed row is highlighted briefly, unless the system requests reduced motion.
const HIGHLIGHT = { backgroundColor: ["color-mix(in srgb, var(--accent) 22%, transparent)", "transparent"] };
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
const list = { matching: [], elements: new Map(), unusedElements: [], height: 44, cursorUid: undefined, changedUids: new Set(), needsFilter: true };

// Draws in the next animation frame. With `refilter`, it also filters, orders and counts the pods again.
let frame;
function draw(refilter = false) {
  list.needsFilter ||= refilter;
  frame ??= requestAnimationFrame(() => {
    frame = undefined;
    if (list.needsFilter) {
      list.needsFilter = false;
      list.matching = matchingPods();
      drawSummary();
    }
    drawRows();
  });
}

function newRow() {
  const link = el("a", { tabIndex: -1 }, el("span", { className: "ns" }), el("span", { className: "name" }));
  const row = el("div", { role: "row", tabIndex: -1 },
    el("span", { className: "pod", role: "rowheader" }, link),
    el("span", { className: "state", role: "gridcell" }, glyph(), " ", el("span")),
    el("span", { className: "wait", role: "gridcell" }, el("span"), el("span", { className: "left" })),
    el("span", { className: "ready number", role: "gridcell" }),
    el("span", { className: "restarts number", role: "gridcell" }),
    el("span", { className: "age number", role: "gridcell" }));
  const [pod, state, wait, ready, restarts, age] = row.children;
  row.parts = { link, ns: link.firstChild, name: link.lastChild, state: state.lastChild, wait, what: wait.firstChild, left: wait.lastChild, ready, restarts, age };
  return row;
}

// The address of a pod. It holds the UID only if several pods have the full name.
function hashOf({ namespace, name, uid }, uidToOpen) {
  const isOnlyPod = uidToOpen === undefined && (podsByName.get(`${namespace}/${name}`) ?? 1) < 2;
  return `#${[namespace, name, ...(isOnlyPod ? [] : [uidToOpen ?? uid])].map(encodeURIComponent).join("/")}`;
}

function fillRow(element, pod, index, cursor) {
  const { row } = pod, { parts } = element, now = clock.now();
  if (element.pod !== pod) {
    element.pod = pod;
    element.className = `row ${row.health}`;
    setText(parts.ns, `${row.namespace}/`);
    setText(parts.name, row.name);
    parts.link.title = `${row.namespace}/${row.name}`;
    setText(parts.state, row.state);
    setText(parts.what, row.wait?.short ?? "");
    parts.wait.title = row.wait?.what ?? "";
    setText(parts.ready, row.containers ? `${row.ready}/${row.containers}` : "");
  }
  const hash = hashOf(row);
  if (parts.link.getAttribute("href") !== hash) parts.link.setAttribute("href", hash);
  let left = "";
  if (row.wait?.until > now) left = `, ${duration(row.wait.until - now + 999)} left`;
  else if (row.wait?.since !== undefined && now - row.wait.since >= 1000) left = `, for ${duration(now - row.wait.since)}`;
  setText(parts.left, left);
  setText(parts.restarts, row.restarts ? `${row.restarts}${row.restarted ? ` (${ago(row.restarted)})` : ""}` : narrow ? "" : "0");
  setText(parts.age, row.started === undefined ? "" : duration(now - row.started));
  element.ariaRowIndex = String(index + 2);
  const selected = String(isOpenPod(pod));
  if (element.ariaSelected !== selected) element.ariaSelected = selected;
  element.tabIndex = index === cursor ? 0 : -1;
  element.style.transform = `translateY(${index * list.height}px)`;
}

let narrow = false;
function cursorIndex() {
  const at = list.cursorUid === undefined ? 0 : list.matching.findIndex((pod) => pod.row.uid === list.cursorUid);
  return Math.max(0, at);
}

function drawRows() {
  const rows = $("rows"), count = list.matching.length;
  rows.style.height = `${count * list.height}px`;
  $("grid").ariaRowCount = String(count + 1);
  if ($("pods").offsetParent === null) return;
  const top = rows.getBoundingClientRect().top;
  const first = Math.max(0, Math.floor(-top / list.height) - OVERSCAN);
  const last = Math.min(count, Math.ceil((innerHeight - top) / list.height) + OVERSCAN);
  const indexes = new Map();
  for (let index = first; index < last; index++) indexes.set(list.matching[index].row.uid, index);
  // The focused row keeps its element. Otherwise the focus would be lost.
  const focused = document.activeElement?.closest?.("#rows .row")?.pod;
  if (focused) {
    const index = list.matching.findIndex((pod) => pod.row.uid === focused.row.uid);
    if (index >= 0) indexes.set(focused.row.uid, index);
  }
  for (const [uid, element] of list.elements) {
    if (indexes.has(uid)) continue;
    list.elements.delete(uid);
    element.remove();
    list.unusedElements.push(element);
  }
  const cursor = cursorIndex();
  for (const [uid, index] of indexes) {
    let element = list.elements.get(uid);
    if (!element) {
      element = list.unusedElements.pop() ?? newRow();
      element.pod = undefined;
      list.elements.set(uid, element);
      rows.append(element);
    }
    fillRow(element, list.matching[index], index, cursor);
    if (list.changedUids.has(uid) && !reducedMotion.matches) element.animate(HIGHLIGHT, 1400);
  }
  list.changedUids.clear();
}

// The height of a row depends on the width of the list.
new ResizeObserver(() => {
  const sample = el("div", { className: "row" });
  sample.style.visibility = "hidden";
  $("rows").append(sample);
  list.height = sample.offsetHeight || list.height;
  sample.remove();
  narrow = list.height > 50;
  for (const element of list.elements.values()) element.pod = undefined;
  draw();
}).observe($("pods"));
addEventListener("scroll", () => draw(), { passive: true });
addEventListener("resize", () => draw(), { passive: true });

function moveTo(index) {
  const pod = list.matching[Math.max(0, Math.min(list.matching.length - 1, index))];
  if (!pod) return;
  list.cursorUid = pod.row.uid;
  const rows = $("rows").getBoundingClientRect(), at = cursorIndex() * list.height + rows.top;
  const tools = getComputedStyle($("tools")).position === "sticky" ? $("tools").offsetHeight : 0;
  if (at < tools) scrollBy(0, at - tools - 4);
  else if (at + list.height > innerHeight) scrollBy(0, at + list.height - innerHeight + 4);
  drawRows();
  list.elements.get(pod.row.uid)?.focus({ preventScroll: true });
}

$("rows").addEventListener("keydown", (event) => {
  if (event.target.closest("a") && event.key === "Enter") return;
  const page = Math.max(1, Math.floor(innerHeight / list.height) - 2);
  const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.key in steps) {
    event.preventDefault();
    moveTo(cursorIndex() + steps[event.key]);
  } else if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    openDetail(event.target.closest(".row").pod);
  }
});
$("rows").addEventListener("click", (event) => {
  if (event.ctrlKey || event.metaKey || event.shiftKey) return;
  const row = event.target.closest(".row");
  if (!row || !getSelection().isCollapsed) return;
  event.preventDefault();
  openDetail(row.pod);
});
$("rows").addEventListener("focusin", (event) => {
  const pod = event.target.closest(".row")?.pod;
  if (pod) list.cursorUid = pod.row.uid;
});
