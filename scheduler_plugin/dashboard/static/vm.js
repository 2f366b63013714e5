// The view of one database: its amounts, charts of its size over time, and the explanation.

import { CostBox } from "./costs.js";
import { fill, h, setText } from "./dom.js";
import { decisionList, marks } from "./marks.js";
import { mergedMoves, moveMarks, movesTable } from "./moves.js";
import { loadingText } from "./status.js";
import { STATES, groupHref, isSleeper, nodeHref, reasonOf, size, stateOf } from "./words.js";

const MAX_POINTS = 1800;
const EXPLANATION_INTERVAL = 5000;
const HISTORY_INTERVAL = 10000;
const LISTED = 50;
const LINES = [["need", "need"], ["permit", "permit"], ["reserved", "reserved-line"], ["size", "use"], ["used", "guest"]];
const PAST = ["need", "permit", "reserved", "size", "used"];
const SPANS = [["15 min", 900], ["1 h", 3600], ["6 h", 21600], ["1 d", 86400], ["7 d", 604800]];

export class VmView {
  constructor(store, [namespace, ...rest]) {
    const name = rest.join("/"); // a pod is pod/NAME
    this.store = store;
    this.key = `${namespace}/${name}`;
    Object.assign(this, { namespace, name });
    this.title = name || "Database";
    this.path = [namespace, ...rest].map(encodeURIComponent).join("/");
    this.facts = h("div", {});
    this.explanation = h("pre", { class: "explanation", tabindex: "0", "aria-label": "Why it has this size" }, "Loading …");
    this.warnings = h("p", { class: "hint", hidden: true });
    this.moves = h("div", {});
    this.decisions = [];
    this.highlighted = null;
    const plugin = () => marks(() => this.decisions, () => this.highlighted, colourOf);
    this.plots = [plotBox("vCPU", plugin()), plotBox("GiB", plugin())];
    this.points = [];
    this.past = null;
    this.span = SPANS[0][1];
    this.spans = SPANS.map(([title, seconds]) => h("button", { type: "button", onclick: () => this.loadHistory(seconds) }, title));
    this.decisionBox = h("div", {});
    this.cost = new CostBox("vm", this.key, this.span);
    this.element = h("section", { class: "page" }, h("h1", {}, this.key), this.facts,
      h("span", { class: "pair", role: "group", "aria-label": "Time range" }, this.spans),
      h("div", { class: "charts" }, this.plots.map((each) => each.element)),
      h("h2", {}, "Explanation"), this.explanation, this.warnings, this.decisionBox, this.cost.element, this.moves);
    this.loadHistory(this.span);
    this.loadExplanation();
    this.historyTimer = setInterval(() => { if (!document.hidden) this.loadHistory(this.span, false); }, HISTORY_INTERVAL);
    this.explanationTimer = setInterval(() => { if (!document.hidden) this.loadExplanation(); }, EXPLANATION_INTERVAL);
    this.sampleTimer = setInterval(() => this.sample(), 1000);
  }

  async loadExplanation() {
    try {
      const response = await fetch(`api/vms/${this.path}`);
      const found = response.ok ? await response.json() : null;
      setText(this.explanation, found ? found.story.join("\n") : "There is no such database, or the API server does not respond.");
      this.warnings.hidden = !found || found.warnings;
      setText(this.warnings, `Kubernetes' warning events are not shown here; to list them: kubectl events --namespace ${this.namespace} --for ${this.name.includes("/") ? this.name : `VirtualMachine/${this.name}`}`);
      if (found && found.agent) this.addFromAgent(found.agent);
    } catch { setText(this.explanation, "The server does not respond."); }
  }

  async loadHistory(seconds, isChosen = true) {
    if (isChosen && this.span !== seconds) this.cost.load(seconds);
    this.span = seconds;
    this.spans.forEach((button, at) => button.setAttribute("aria-pressed", String(SPANS[at][1] === seconds)));
    const found = await fetch(`api/past/${this.path}?seconds=${seconds}`).then((response) => response.ok ? response.json() : null).catch(() => null);
    if (this.span !== seconds) return;
    this.past = found;
    if (found && found.at.length) this.setDecisions([...found.decisions, ...moveMarks(found.moves)].sort((a, b) => b.at - a.at));
    this.showMoves();
    this.sample();
  }

  // Without a history, a change of the agent's explanation is a decision, unless only numbers changed.
  addFromAgent(agent) {
    if ((this.past && this.past.at.length) || !agent.because) return;
    const [last] = this.decisions;
    const gist = (text) => text.replace(/[0-9.]+/g, "#");
    if (last && gist(last.said[0]) === gist(agent.because)) return;
    this.setDecisions([{ at: Date.now() / 1000, by: "agent", said: [agent.because], denied: Boolean(agent.denied) }, ...this.decisions]);
  }

  setDecisions(decisions) {
    if (JSON.stringify(decisions) === JSON.stringify(this.decisions)) return;
    this.decisions = decisions;
    const title = decisions.some((each) => each.isMove) ? "Decisions and migrations" : "Decisions";
    fill(this.decisionBox, decisions.length ? [h("h2", {}, title), ...decisionList(decisions, LISTED, (each) => this.highlight(each))] : null);
  }

  highlight(decision) {
    this.highlighted = decision;
    for (const plot of this.plots) if (plot.chart) plot.chart.redraw(false);
  }

  sample() {
    const vm = this.store.link === "live" ? this.store.rows.vm.get(this.key) : null;
    const [, before] = this.points.at(-1) || [0, null];
    if (vm || before) this.points.push([Date.now() / 1000, vm]); // null: unknown from then on
    if (this.points.length > MAX_POINTS) this.points.shift();
    if (!this.points.length && !this.past) return;
    const oldest = Date.now() / 1000 - this.span;
    this.plots.forEach((plot, resource) => draw(plot, seriesOf(this.past, this.points, resource, oldest)));
  }

  update() {
    if (this.shownVersion === this.store.version) return;
    this.shownVersion = this.store.version;
    const vm = this.store.rows.vm.get(this.key);
    if (!vm) { fill(this.facts, h("p", { class: "empty" }, loadingText(this.store) || "There is no such database.")); return; }
    const state = stateOf(vm);
    fill(this.facts,
      h("p", {}, h("span", { class: `tag ${state}` }, `${STATES[state].mark} ${reasonOf(vm)}`.trim()), ` ${vm.phase}, on `,
        vm.node ? h("a", { href: nodeHref(vm.node) }, vm.node) : "no node",
        vm.group ? [", in the group ", h("a", { href: groupHref(`VirtualMachineGroup/${vm.namespace}/${vm.group}`) }, vm.group)] : null,
        vm.enabled ? "." : ". It is not autoscaled."),
      h("dl", { class: "facts" }, [isSleeper(vm) ? ["Size on wake", vm.wakes] : ["Size", vm.use], [this.name.includes("/") ? "Applied size" : "Guest size", vm.actual], ["Permit", vm.permit],
        ["Reserved", vm.reserved], ["Minimum", vm.least], ["Maximum", vm.most]]
        .map(([name, pair]) => h("div", {}, h("dt", {}, name), h("dd", {}, size(pair))))));
    this.showMoves();
  }

  showMoves() {
    const now = [...this.store.rows.move.values()].filter((each) => each.vm === this.key);
    const moves = mergedMoves(now, this.past ? this.past.moves : []);
    fill(this.moves, moves.length ? movesTable("Migrations", moves) : null);
  }

  close() {
    clearInterval(this.explanationTimer);
    clearInterval(this.sampleTimer);
    clearInterval(this.historyTimer);
    this.cost.close();
    for (const plot of this.plots) if (plot.chart) plot.chart.destroy();
  }
}

function plotBox(unit, plugin) {
  const figure = h("div", { class: "plot" });
  const title = unit === "vCPU" ? "CPU in vCPUs" : "Memory in GiB";
  const element = h("figure", { class: "card" }, h("figcaption", {}, title, legend()), figure);
  return { unit, figure, element, plugin, chart: null };
}

const legend = () => h("span", { class: "legend" }, LINES.map(([title, name]) => h("span", { class: `key ${name}` }, title)));

// The history's samples, followed by the later ones of this page.
function seriesOf(past, points, resource, oldest) {
  const scale = resource === 0 ? 1000 : 1024;
  const name = resource === 0 ? "cpu" : "mem";
  const columns = past ? PAST.map((kind) => past.columns[`${kind}_${name}`].map((each) => each === null ? null : each / (resource === 0 ? 1000 : 1024 * 1024))) : PAST.map(() => []);
  const at = past ? [...past.at] : [];
  const last = at.length ? at[at.length - 1] : 0;
  const live = points.filter(([time]) => time > last && time >= oldest);
  const of = (vm, kind) => !vm || vm[kind][resource] < 0 ? null : vm[kind][resource] / scale;
  const need = (vm) => !vm ? null : (vm.use[resource] + Math.max(0, vm.denied[resource])) / scale;
  return [[...at, ...live.map(([time]) => time)],
    [...columns[0], ...live.map(([, vm]) => need(vm))],
    [...columns[1], ...live.map(([, vm]) => of(vm, "permit"))],
    [...columns[2], ...live.map(([, vm]) => of(vm, "reserved"))],
    [...columns[3], ...live.map(([, vm]) => of(vm, "use"))],
    [...columns[4], ...live.map(() => null)]];
}

function draw(plot, data) {
  if (plot.chart) { plot.chart.setData(data); return; }
  if (plot.figure.clientWidth > 0) plot.chart = new window.uPlot(optionsOf(plot), data, plot.figure);
}

const STEPS = window.uPlot.paths.stepped({ align: 1 });
const line = (stroke, style) => ({ stroke, paths: STEPS, points: { show: false }, ...style });
const CLOCK = [[86400, "{MM}-{DD}", null, null, null, null, null, null, 1], [60, "{HH}:{mm}", null, null, null, null, null, null, 1],
  [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1], [0.001, "{ss}.{fff}", null, null, null, null, null, null, 1]];

const colourOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function optionsOf({ figure, plugin }) {
  const colour = (name) => () => colourOf(name);
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
  return {
    width: figure.clientWidth, height: 170, plugins: [plugin], legend: { show: false }, cursor: { drag: { x: false, y: false } },
    scales: { x: { range: (_, low, high) => [Math.min(low, high - 60), high] }, y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
    axes: [{ ...axis, values: CLOCK }, { ...axis, size: 44 }],
    series: [{},
      line(colour("--over-watermark"), { width: 1.5, dash: [2, 3] }),
      line(colour("--permit"), { width: 1, dash: [6, 4] }),
      line(colour("--reserved-line"), { width: 1 }),
      line(colour("--link"), { width: 2, fill: colour("--used-fill") }),
      line(colour("--good"), { width: 1.5 })],
  };
}
