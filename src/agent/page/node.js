// The agent's state, the counts and the filters.

let agent;

function showAgent() {
  if (!agent) return;
  text($("node"), `on ${agent.name}`);
  document.title = `${agent.name} · podwright`;
  $("stopping").hidden = !agent.stopping;
  const value = (health, words) => ({ health, words });
  const failure = (words, { since, error }) => ({ health: "failing", words: `${words} `, age: ["for #", since], cause: error });
  const runtime = agent.outage ? failure("does not answer", agent.outage) : agent.runtime ? value("healthy", "answers") : value("failing", "does not answer");
  const passes = agent.passFailure ? failure("passes fail", agent.passFailure) : agent.housekeeping === undefined ? value("waiting", "no pass yet")
    : { ...value(agent.late ? "failing" : "healthy", "last pass "), age: ["# ago", agent.housekeeping] };
  const sources = [...new Set(agent.locations.map((location) => location.source))].map((source) =>
    agent.missing.includes(source) ? value("waiting", `${source} has not delivered`) : value("healthy", `${source} delivered`));
  const facts = [["Runtime", runtime, ...agent.conditions.map((condition) => value("failing", condition))], ["Housekeeping", passes], ["Sources", ...sources], ["Version", { words: agent.version }],
    ["Up", { words: "", age: ["#", agent.started] }]];
  const into = $("agent").firstElementChild;
  if (!into.children.length) into.append(...facts.map(([name]) => el("div", {}, el("dt", {}, name))));
  facts.forEach(([, ...values], index) => showFact(into.children[index], values));
  $("problems").hidden = agent.problemCount === 0;
  // A source that has never delivered has no version that could run.
  const kept = agent.missing.length ? "" : ": the last good version keeps running";
  text($("problems-title"), `${plural(agent.problemCount, "manifest problem")}${kept}`);
  replaceIfChanged($("problems").querySelector("ul"), [agent.problems, agent.problemCount], () => [
    ...agent.problems.map((problem) => el("li", {}, el("span", { className: "mono" }, problem.what), ": ", problem.message)),
    ...(agent.problemCount > agent.problems.length ? [el("li", {}, `and ${agent.problemCount - agent.problems.length} more, in the agent's log`)] : [])]);
  if (!pods.size) showEmpty();
}

// A fact has one `dd` for each value. If only the age of a value changes, only the age is replaced.
function showFact(fact, values) {
  while (fact.children.length > values.length + 1) fact.lastElementChild.remove();
  values.forEach(({ health, words, age, cause }, index) => {
    const value = fact.children[index + 1] ?? fact.appendChild(el("dd"));
    replaceIfChanged(value, [health, words, age?.[0], cause], () => [
      health && el("span", { className: health }, glyph()), health && " ", words,
      age && aged({ "data-words": age[0] }, "since", age[1]), cause && el("p", { className: "soft" }, cause)].filter(Boolean));
    const element = value.querySelector("[data-since]");
    if (!element || element.dataset.since === String(age[1])) return;
    element.dataset.since = age[1];
    updateAge(element);
  });
}

// Replaces the content of an element only if the data for it changed, so that a selection in it survives.
function replaceIfChanged(element, data, make) {
  const key = JSON.stringify(data);
  if (element.shownKey === key) return;
  element.shownKey = key;
  element.replaceChildren(...make());
}

function showEmpty() {
  if (!agent) return;
  const explanation = agent.missing.length
    ? `The ${agent.missing.join(" and ")} source has not delivered yet. Pods start when it does. The agent reads manifests from:`
    : "This node has no manifests. A pod starts when you add its manifest to one of these locations:";
  const sample = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: hello\nspec:\n  containers:\n  - name: main\n    image: none\n    command: [sh, -c, \"while date; do sleep 5; done\"]\n";
  const file = agent.locations.find((location) => location.source === "file");
  replaceIfChanged($("empty"), [agent.missing, agent.locations], () => [
    el("h2", {}, "No pods yet"),
    el("p", {}, explanation),
    el("ul", {}, agent.locations.map(({ location }) => el("li", {}, el("code", {}, location)))),
    el("p", {}, file ? "For example, as hello.yaml:" : "For example:"),
    el("pre", { tabIndex: 0, ariaLabel: "An example manifest" }, sample),
    el("p", {}, "If a manifest is there and no pod starts, run ", el("code", {}, `podwright validate ${file?.location ?? "FILE"}`), ". It prints each fault with its line and field.")]);
}

// Buttons are replaced only when the set of buttons changes. Counts are updated in place, so that no button loses the focus.
function chips(into, all) {
  const have = new Map([...into.children].map((button) => [button.dataset.name, button]));
  const want = all.filter((chip) => chip.count || chip.on || chip.always);
  if (want.length !== have.size || want.some((chip) => !have.has(chip.name))) {
    const focus = document.activeElement?.dataset?.name;
    into.replaceChildren(...want.map((chip) => {
      const button = have.get(chip.name) ?? el("button", { type: "button", "data-name": chip.name },
        chip.health ? glyph() : "", el("b"), el("span", {}, chip.words));
      button.onclick = chip.toggle;
      if (chip.health) button.className = chip.health;
      have.set(chip.name, button);
      return button;
    }));
    if (focus) have.get(focus)?.focus({ preventScroll: true });
  }
  for (const chip of want) {
    const button = have.get(chip.name);
    text(button.querySelector("b"), (chip.count ?? 0).toLocaleString("en"));
    const pressed = String(Boolean(chip.on));
    if (button.ariaPressed !== pressed) button.ariaPressed = pressed;
  }
}

function toggleFilter(set, value) {
  if (!set.delete(value)) set.add(value);
  filterChanged();
}

function drawSummary() {
  const sum = countPods(), all = pods.size;
  chips($("healths"), [
    ...HEALTHS.map((health) => ({
      name: health, health, words: health, count: sum.health[health], always: true,
      on: filter.healths.has(health), toggle: () => toggleFilter(filter.healths, health),
    })),
    { name: "long", words: "waiting > 1 min", count: sum.long, always: true, on: filter.long, toggle: () => { filter.long = !filter.long; filterChanged(); } },
    { name: "recent", words: "restarted < 10 min", count: sum.recent, always: true, on: filter.recent, toggle: () => { filter.recent = !filter.recent; filterChanged(); } },
  ]);
  chips($("phases"), PHASES.map((phase) => ({
    name: phase, words: phase, count: sum.phase[phase], on: filter.phases.has(phase), toggle: () => toggleFilter(filter.phases, phase),
  })));
  const share = $("share");
  if (!share.children.length) share.append(...HEALTHS.map((health) => el("span", { className: health })));
  for (const part of share.children) {
    part.style.flexGrow = sum.health[part.className] ?? 0;
    part.hidden = !sum.health[part.className];
  }
  options($("namespace"), "All namespaces", sum.namespaces, filter.namespace);
  options($("wait"), "Any wait", sum.waits, filter.wait);
  $("namespace").parentElement.hidden = sum.namespaces.size < 2 && !filter.namespace;
  text($("count"), `${list.shown.length < all ? `${list.shown.length.toLocaleString("en")} of ` : ""}${all.toLocaleString("en")}, ${sum.active.toLocaleString("en")} active`);
  const loaded = agent !== undefined && !list.loading;
  $("summary").hidden = !all;
  $("split").hidden = !all && chosen === undefined;
  $("empty").hidden = Boolean(all) || !loaded || chosen !== undefined;
  $("none").hidden = list.shown.length > 0 || !all;
  $("grid").hidden = !list.shown.length;
  if (!all) showEmpty();
}

function options(select, every, counts, value) {
  const names = [...counts.keys()].sort();
  if (value && !counts.has(value)) names.push(value);
  const key = names.map((name) => `${name} ${counts.get(name) ?? 0}`).join("\n");
  // An open menu is not changed.
  if (select.shownKey === key || document.activeElement === select && select.shownKey !== undefined) return;
  select.shownKey = key;
  select.replaceChildren(el("option", { value: "" }, every),
    ...names.map((name) => el("option", { value: name }, `${name} (${counts.get(name) ?? 0})`)));
  select.value = value;
}

function filterChanged() {
  writeAddress();
  draw(true);
}

$("search").addEventListener("submit", (event) => event.preventDefault());
$("query").addEventListener("input", () => { filter.query = $("query").value.trim(); filterChanged(); });
for (const name of ["namespace", "wait", "sort"]) {
  $(name).addEventListener("change", () => { filter[name] = $(name).value; filterChanged(); });
}
$("clear").addEventListener("click", () => {
  Object.assign(filter, { query: "", healths: new Set(), phases: new Set(), namespace: "", wait: "", long: false, recent: false });
  $("query").value = "";
  for (const name of ["namespace", "wait"]) $(name).value = "";
  filterChanged();
  $("query").focus();
});
addEventListener("keydown", (event) => {
  if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
    event.preventDefault();
    $("query").focus();
  }
});
