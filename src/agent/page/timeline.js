// The timeline of one pod, drawn to scale: one lane for the pod, one for each container, one for events.

const SVG = "http://www.w3.org/2000/svg";
const AXIS_STEPS_MS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800, 2592000].map((s) => s * 1000);
// The colour of each lifecycle state.
const SPAN_COLOURS = { waiting: "waiting", sync: "healthy", terminating: "stopping", terminated: "finished", finished: "finished" };
const LANE_HEIGHT = 30, AXIS_HEIGHT = 22, NAME_HEIGHT = 14;

function svg(tag, props = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(props)) if (value !== undefined) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// `lanes` have a name, spans (from, to, kind, label, tooltip) and marks (at, kind, tooltip). Times are in milliseconds.
function timelineSvg(lanes, from, to, width) {
  const scale = (at) => ((at - from) / Math.max(1, to - from)) * (width - 2) + 1;
  const height = lanes.length * (LANE_HEIGHT + NAME_HEIGHT) + AXIS_HEIGHT;
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-labelledby": "timeline-title timeline-words" });
  root.append(svg("defs", {}, svg("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("line", { class: "hatch", x1: 0, y1: 0, x2: 0, y2: 6 }))));
  const step = AXIS_STEPS_MS.find((step) => ((to - from) / step) * 90 <= width) ?? AXIS_STEPS_MS.at(-1);
  const offset = new Date(from).getTimezoneOffset() * 60_000;
  for (let at = Math.ceil((from - offset) / step) * step + offset; at <= to; at += step) {
    const x = scale(at);
    root.append(svg("line", { class: "grid", x1: x, x2: x, y1: 0, y2: height - AXIS_HEIGHT }));
    const anchor = x < 30 ? "start" : x > width - 30 ? "end" : "middle";
    root.append(svg("text", { class: "soft", x, y: height - 6, "text-anchor": anchor }, axisLabel(at, step)));
  }
  lanes.forEach((lane, index) => {
    const top = index * (LANE_HEIGHT + NAME_HEIGHT) + NAME_HEIGHT;
    root.append(svg("text", { class: "soft", x: 1, y: top - 2 }, lane.name));
    for (const span of lane.spans ?? []) {
      if (span.to < from || span.from > to) continue;
      const x = scale(Math.max(from, span.from)), wide = Math.max(2, scale(Math.min(to, span.to)) - x);
      root.append(svg("rect", { class: `span ${span.kind}`, x, y: top + 3, width: wide, height: LANE_HEIGHT - 10, rx: 3 }, svg("title", {}, span.tooltip)));
      if (span.label && wide > span.label.length * 7.5 + 10 && span.kind !== "stopping") {
        root.append(svg("text", { class: "in", x: x + 6, y: top + LANE_HEIGHT - 13 }, span.label));
      }
    }
    for (const mark of lane.marks ?? []) {
      if (mark.at < from || mark.at > to) continue;
      const x = scale(mark.at), y = top + LANE_HEIGHT / 2 - 2;
      // A warning differs in shape, not only in colour.
      const shape = mark.kind === "failing"
        ? svg("path", { class: "mark failing", d: `M${x - 6} ${y + 6}L${x} ${y - 6}L${x + 6} ${y + 6}Z` }, svg("title", {}, mark.tooltip))
        : svg("circle", { class: `mark ${mark.kind}`, cx: x, cy: y, r: 4 }, svg("title", {}, mark.tooltip));
      root.append(shape);
    }
  });
  root.append(svg("line", { class: "now", x1: scale(to), x2: scale(to), y1: 0, y2: height - AXIS_HEIGHT }));
  return root;
}

function axisLabel(at, step) {
  const date = new Date(at);
  if (step >= 86_400_000) return date.toLocaleDateString("en", { month: "short", day: "numeric" });
  return step >= 60_000 ? timeOfDay(at).slice(0, 5) : timeOfDay(at);
}

const legend = () => el("p", { className: "legend", ariaHidden: "true" },
  [["waiting", "waiting"], ["healthy", "running"], ["stopping", "stopping"], ["finished", "finished"], ["failing", "failing"]].map(([kind, label]) =>
    el("span", {}, el("i", { className: kind }), label)));
