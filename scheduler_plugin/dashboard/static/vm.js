// The view of one VM: what it has, its size over time since the page was opened, and why.

import { fill, h, say } from "./dom.js";
import { movesTable } from "./moves.js";
import { STATES, groupHref, nodeHref, size, stateOf, whyOf } from "./words.js";

const MOST_POINTS = 1800;
const ASK_EVERY = 5000;
const LINES = [["need denied", "denied"], ["permit", "permit"], ["reserved", "reserved"], ["size", "use"]];

export class VmView {
  constructor(store, [namespace, name]) {
    this.store = store;
    this.key = `${namespace}/${name}`;
    this.title = name || "VM";
    this.path = [namespace, name].map(encodeURIComponent).join("/");
    this.facts = h("div", {});
    this.story = h("pre", { class: "story", tabindex: "0", "aria-label": "Why it has its size" }, "Asking …");
    this.moves = h("div", {});
    this.plots = [plotBox("vCPU"), plotBox("GiB")];
    this.points = [];
    this.element = h("section", { class: "page" }, h("h1", {}, this.key), this.facts,
      h("div", { class: "charts" }, this.plots.map((each) => each.element)),
      h("h2", {}, "Why"), this.story, this.moves);
    this.ask();
    this.asking = setInterval(() => { if (!document.hidden) this.ask(); }, ASK_EVERY);
    this.sampling = setInterval(() => this.sample(), 1000);
  }

  async ask() {
    try {
      const answer = await fetch(`/api/vms/${this.path}`);
      const found = answer.ok ? await answer.json() : null;
      say(this.story, found ? found.story.join("\n") : "There is no such VM, or the API server does not answer.");
    } catch { say(this.story, "The server does not answer."); }
  }

  sample() {
    const vm = this.store.rows.vm.get(this.key);
    if (!vm) return;
    this.points.push([Date.now() / 1000, vm]);
    if (this.points.length > MOST_POINTS) this.points.shift();
    this.plots.forEach((plot, resource) => draw(plot, this.points, resource));
  }

  update() {
    if (this.shown === this.store.version) return;
    this.shown = this.store.version;
    const vm = this.store.rows.vm.get(this.key);
    if (!vm) { fill(this.facts, h("p", { class: "empty" }, "There is no such VM.")); return; }
    const state = stateOf(vm);
    fill(this.facts,
      h("p", {}, h("span", { class: `tag ${state}` }, `${STATES[state].mark} ${whyOf(vm)}`.trim()), ` ${vm.phase}, on `,
        vm.node ? h("a", { href: nodeHref(vm.node) }, vm.node) : "no node",
        vm.group ? [", of the group ", h("a", { href: groupHref(`VirtualMachineGroup/${vm.namespace}/${vm.group}`) }, vm.group)] : null,
        vm.enabled ? "." : ". It is not autoscaled."),
      h("dl", { class: "facts" }, [["Has", vm.use], ["The guest has", vm.actual], ["Permit", vm.permit],
        ["Reserved", vm.reserved], ["At least", vm.least], ["At most", vm.most]]
        .map(([name, pair]) => h("div", {}, h("dt", {}, name), h("dd", {}, size(pair))))));
    const moves = [...this.store.rows.move.values()].filter((each) => each.vm === this.key);
    fill(this.moves, moves.length ? movesTable("Its migrations", moves) : null);
  }

  close() {
    clearInterval(this.asking);
    clearInterval(this.sampling);
    for (const plot of this.plots) if (plot.chart) plot.chart.destroy();
  }
}

function plotBox(unit) {
  const figure = h("div", { class: "plot" });
  const title = unit === "vCPU" ? "CPU in vCPUs" : "Memory in GiB";
  const element = h("figure", { class: "card" }, h("figcaption", {}, title, legend()), figure);
  return { unit, figure, element, chart: null };
}

const legend = () => h("span", { class: "legend" }, LINES.map(([title, name]) => h("span", { class: `key ${name}` }, title)));

function draw(plot, points, resource) {
  const scale = resource === 0 ? 1000 : 1024;
  const of = (name) => points.map(([, vm]) => vm[name][resource] < 0 ? null : vm[name][resource] / scale);
  const denied = points.map(([, vm]) => vm.denied[resource] > 0 ? (vm.use[resource] + vm.denied[resource]) / scale : null);
  const data = [points.map(([time]) => time), denied, of("permit"), of("reserved"), of("use")];
  if (plot.chart) { plot.chart.setData(data); return; }
  if (plot.figure.clientWidth > 0) plot.chart = new window.uPlot(optionsOf(plot.figure), data, plot.figure);
}

function optionsOf(figure) {
  const colour = (name) => () => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
  return {
    width: figure.clientWidth, height: 170, legend: { show: false }, cursor: { drag: { x: false, y: false } },
    scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
    axes: [axis, { ...axis, size: 44 }],
    series: [{},
      { stroke: colour("--denied"), width: 2 },
      { stroke: colour("--permit"), width: 1, dash: [4, 3] },
      { stroke: colour("--reserved-line"), width: 1.5 },
      { stroke: colour("--used"), width: 2, fill: colour("--used-fill") }],
  };
}
