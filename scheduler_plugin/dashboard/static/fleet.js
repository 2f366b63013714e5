// The view of the fleet: problems, filters, the bars of all nodes, and tables of the same data.

import { FleetCanvas } from "./canvas.js";
import { fill, h, setText, table } from "./dom.js";
import { ZOOMS, accepts, blockAt, cellAt, defaultZoom, layoutOf, nodesIn, nodesOf } from "./layout.js";
import { isCurrent, loadingText } from "./status.js";
import { NODE_MARKS, STATES, amount, count, isActive, isSleeper, isUnderPressure, nodeHref, nodeTitle, reasonOf, routeText, size, some, stateOf, titled, vmHref } from "./words.js";

const LISTED = 40;
const MAX_ROWS = 300;
const TABLE_INTERVAL = 2000;
const FLAGGED_STATES = Object.keys(STATES).filter((state) => state !== "calm");
const RESOURCES = ["CPU", "Memory"];
const NO_FILTER = { text: "", namespace: "", node: "", group: "", state: "" };
const prefs = { filter: { ...NO_FILTER }, resource: 0, zoom: null };

export class FleetView {
  // Clears the filter: it may name objects that the next user may not see.
  static reset() { Object.assign(prefs.filter, NO_FILTER); }

  constructor(store) {
    this.store = store;
    this.title = "Fleet";
    this.selected = "";
    this.build();
    this.canvas = new FleetCanvas(this.scroller);
    this.resizing = new ResizeObserver(() => this.update(true));
    this.resizing.observe(this.scroller);
    this.repainting = new MutationObserver(() => this.canvas.requestDraw());
    this.repainting.observe(document.documentElement, { attributeFilter: ["data-theme"] });
  }

  build() {
    this.chips = h("div", { class: "chips", role: "group", "aria-label": "Problems" });
    this.selects = { namespace: this.select("Namespace"), node: this.select("Node"), group: this.select("Group") };
    this.search = h("input", { type: "search", placeholder: "Find by name  ( / )", "aria-label": "Find a database or node", value: prefs.filter.text,
      oninput: () => this.setFilter({ text: this.search.value.trim() }) });
    this.resource = RESOURCES.map((name, at) => h("button", { type: "button", onclick: () => { prefs.resource = at; this.update(true); } }, name));
    const zoom = [["−", -1, "Zoom out"], ["+", 1, "Zoom in"]].map(([sign, step, name]) =>
      h("button", { type: "button", "aria-label": name, onclick: () => this.zoom(step) }, sign));
    this.sizer = h("div", { class: "sizer" });
    this.scroller = h("div", { class: "fleet", tabindex: "0", role: "application", "aria-describedby": "keys",
      "aria-label": "Nodes as bars, with their databases as blocks", onkeydown: (event) => this.key(event),
      onscroll: () => this.canvas.requestDraw(), onmousemove: (event) => this.hover(event), onmouseleave: () => this.showTip(),
      onclick: (event) => this.open(this.targetOf(event)) }, h("canvas", { "aria-hidden": "true" }), this.sizer);
    this.problems = h("div", {});
    this.rows = h("div", {});
    this.details = h("details", { class: "behind", ontoggle: () => this.showTables(true) }, h("summary", {}, "Show as tables"), this.rows);
    this.announcement = h("p", { class: "unseen", "aria-live": "polite" });
    this.element = h("section", { class: "fleet-view" }, h("h1", { class: "unseen" }, "Fleet"), this.chips,
      h("div", { class: "tools" }, this.search, Object.values(this.selects), h("span", { class: "pair", role: "group", "aria-label": "Resource" }, this.resource),
        h("span", { class: "pair", role: "group", "aria-label": "Zoom" }, zoom), legend()),
      h("p", { class: "unseen", id: "keys" }, "Arrow keys select a node or database, Enter opens it, plus and minus zoom, slash searches."),
      h("div", { class: "split" }, this.scroller,
        h("aside", { class: "attention", "aria-label": "Problems" }, this.problems)),
      this.details, this.announcement);
    this.onKey = (event) => { if (event.key === "/" && !/INPUT|SELECT/.test(event.target.tagName)) { event.preventDefault(); this.search.focus(); } };
    addEventListener("keydown", this.onKey);
  }

  select(title) {
    const name = title.toLowerCase();
    const found = h("select", { "aria-label": title, onchange: () => this.setFilter({ [name]: found.value }) });
    return found;
  }

  setFilter(change) {
    Object.assign(prefs.filter, change);
    this.update(true);
  }

  zoom(step) {
    prefs.zoom = Math.max(0, Math.min(ZOOMS.length - 1, this.zoomed + step));
    this.update(true);
  }

  get zoomed() { return prefs.zoom ?? defaultZoom(this.store.rows.node.size); }

  update(isForced = false) {
    if (!isForced && this.shownVersion === this.store.version) return;
    this.shownVersion = this.store.version;
    const entries = nodesOf(this.store, prefs.filter);
    const width = this.scroller.clientWidth;
    if (width > 0) {
      this.layout = layoutOf(entries, width, this.zoomed, prefs.resource);
      this.sizer.style.height = `${this.layout.height}px`;
      this.canvas.show(this.layout, prefs.resource, this.selected);
    }
    this.resource.forEach((button, at) => button.setAttribute("aria-pressed", String(at === prefs.resource)));
    this.entries = entries;
    this.showCounts();
    this.options();
    this.showTables(isForced);
  }

  showCounts() {
    const vms = [...this.store.rows.vm.values()];
    const nodes = [...nodesIn(this.store).values()];
    const named = nodes.filter((node) => node.key);
    const flagged = vms.filter((vm) => stateOf(vm) !== "calm" && accepts({ ...prefs.filter, state: "" }, vm));
    const loading = loadingText(this.store);
    const by = (state) => flagged.filter((vm) => stateOf(vm) === state).length;
    const pressured = nodes.filter(isUnderPressure);
    const chips = [...FLAGGED_STATES.map((state) => [state, by(state)]), ["over-watermark", pressured.length]];
    fill(this.chips, h("span", { class: "sum" }, loading || `${count(vms.length, "database")} on ${count(named.length, "node")}`),
      loading ? [] : chips.map(([state, many]) => h("button", { type: "button", class: `chip ${many ? state : ""}`, "aria-pressed": String(prefs.filter.state === state),
        onclick: () => this.setFilter({ state: prefs.filter.state === state ? "" : state }) }, `${many.toLocaleString("en")} ${titled(state)}`)));
    setText(this.announcement, loading || `${chips.filter(([, many]) => many).map(([state, many]) => `${many} ${titled(state)}`).join(", ") || "No problems"}.`);
    this.showProblems(flagged.filter((vm) => STATES[stateOf(vm)].isProblem), pressured);
  }

  showProblems(flagged, pressured) {
    flagged = sorted(flagged);
    const moves = new Map([...this.store.rows.move.values()].filter(isActive).map((each) => [each.vm, each]));
    const where = (vm) => moves.has(vm.key) ? routeText(moves.get(vm.key), vm.node) : vm.node || "no node";
    const item = (state, href, name, reason, place) => h("li", { class: state }, h("a", { href }, name), h("span", { class: "said" }, `${(STATES[state] || { mark: NODE_MARKS[state] }).mark} ${reason}`), h("span", { class: "place" }, place));
    const nodes = pressured.slice(0, LISTED).map((node) => item("over-watermark", nodeHref(node.key), node.key, node.stuck || `${some(node.excess)} above its watermark`, "node"));
    const vms = flagged.slice(0, LISTED).map((vm) => item(stateOf(vm), vmHref(vm.key), vm.key, reasonOf(vm), where(vm)));
    const more = Math.max(0, flagged.length - LISTED) + Math.max(0, pressured.length - LISTED);
    fill(this.problems, h("h2", {}, "Problems"), nodes.length + vms.length === 0 ? noProblems(this.store) : h("ul", {}, vms, nodes), more ? h("p", { class: "more" }, `and ${more} more`) : null);
  }

  options() {
    const values = { namespace: new Set(), node: new Set([...nodesIn(this.store).keys()].filter(Boolean)), group: new Set() };
    for (const vm of this.store.rows.vm.values()) { values.namespace.add(vm.namespace); if (vm.group) values.group.add(vm.group); }
    for (const [name, select] of Object.entries(this.selects)) {
      const sorted = [...values[name]].sort();
      const mark = sorted.join("\n");
      if (select.mark === mark) continue;
      select.mark = mark;
      fill(select, h("option", { value: "" }, `All ${name}s`), sorted.map((each) => h("option", { value: each }, each)));
      select.value = prefs.filter[name];
    }
  }

  showTables(isForced) {
    const now = Date.now();
    if (!this.entries || (!isForced && now - (this.tablesAt || 0) < TABLE_INTERVAL)) return;
    this.tablesAt = now;
    if (!this.details.open) { fill(this.rows); return; }
    fill(this.rows, nodeTable(this.entries), vmTables(this.entries.flatMap(({ vms, matches }) => vms.filter((vm) => matches.has(vm.key)))));
  }

  targetOf(event) {
    if (!this.layout) return null;
    const box = this.scroller.getBoundingClientRect();
    const x = event.clientX - box.left;
    const cell = cellAt(this.layout, x, event.clientY - box.top + this.scroller.scrollTop);
    return cell ? { cell, block: blockAt(cell, x) } : null;
  }

  hover(event) {
    const found = this.targetOf(event);
    this.scroller.dataset.over = found ? "1" : "";
    this.showTip(found, event);
  }

  showTip(found, event) {
    const tip = document.getElementById("tip");
    tip.hidden = !found;
    if (!found) return;
    const { node } = found.cell;
    const vm = found.block && found.block.vm;
    const lines = vm ? [vm.key, isSleeper(vm) ? `wakes with ${size(vm.wakes)}` : `has ${size(vm.use)}`, `permit ${size(vm.permit)}`, `reserved ${size(vm.reserved)}`, reasonOf(vm)]
      : node.isUnlisted ? [nodeTitle(node.key), node.key ? "The scheduler does not list it." : "", count(found.cell.vms.length, "database")]
      : [node.key, `${amount(node.reserved, prefs.resource)} of ${amount(node.total, prefs.resource)} reserved`, `${amount(node.free, prefs.resource)} free`, count(found.cell.vms.length, "database")];
    fill(tip, lines.map((line, at) => h("div", { class: at ? "" : "strong" }, line)));
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
  }

  open(found) {
    if (!found) return;
    this.showTip();
    location.hash = found.block ? vmHref(found.block.vm.key) : nodeHref(found.cell.node.key);
  }

  key(event) {
    if (event.key === "+" || event.key === "-") { this.zoom(event.key === "+" ? 1 : -1); return; }
    if (event.key === "Enter" && this.selected) { location.hash = `#/${this.selected.split("/").map(encodeURIComponent).join("/")}`; return; }
    const steps = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
    if (!steps || !this.layout || this.layout.cells.length === 0) return;
    event.preventDefault();
    this.step(...steps);
  }

  step(along, across) {
    const { cells, columns } = this.layout;
    let cell = Math.max(0, cells.findIndex((each) => this.selected === `node/${each.node.key}` || each.blocks.some((block) => this.selected === `vm/${block.vm.key}`)));
    let at = cells[cell].blocks.findIndex((block) => this.selected === `vm/${block.vm.key}`);
    if (this.selected && along) {
      at += along;
      if (at < -1) { cell = Math.max(0, cell - 1); at = cells[cell].blocks.length - 1; }
      if (at >= cells[cell].blocks.length) { cell = Math.min(cells.length - 1, cell + 1); at = -1; }
    } else if (this.selected) { cell = Math.max(0, Math.min(cells.length - 1, cell + across * columns)); at = -1; }
    const { node, blocks, y } = cells[cell];
    this.selected = at < 0 ? `node/${node.key}` : `vm/${blocks[at].vm.key}`;
    const { scrollTop: top, clientHeight: height } = this.scroller;
    if (y < top || y + 40 > top + height) this.scroller.scrollTop = Math.max(0, y - height / 2);
    setText(this.announcement, at < 0 ? nodeText(node) : `Database ${blocks[at].vm.key}, ${size(blocks[at].vm.use)}, ${reasonOf(blocks[at].vm)}`);
    this.canvas.selected = this.selected;
    this.canvas.requestDraw();
  }

  close() {
    this.resizing.disconnect();
    this.repainting.disconnect();
    removeEventListener("keydown", this.onKey);
    this.showTip();
  }
}

function noProblems(store) {
  if (isCurrent(store)) return h("p", { class: "empty calm" }, "No problems: every database has what it requested.");
  return h("p", { class: "empty" }, loadingText(store) ? "Not known yet." : "None in the current data. The line above says which data is stale.");
}

// Sorts the worst first.
const RANK = Object.fromEntries(Object.keys(STATES).map((state, at) => [state, at]));
const sorted = (vms) => [...vms].sort((a, b) => RANK[stateOf(a)] - RANK[stateOf(b)] || b.denied[0] - a.denied[0] || a.key.localeCompare(b.key));

const nodeText = (node) => !node.key ? "Databases without a node" : node.isUnlisted ? `Node ${node.key}, which the scheduler does not list`
  : `Node ${node.key}, ${size(node.reserved)} reserved of ${size(node.total)}`;

function nodeTable(entries) {
  const headings = [{ text: "Node" }, { text: "Databases", number: true }, { text: "Reserved", number: true }, { text: "Free", number: true },
    { text: "Watermark", number: true }, { text: "Problems" }];
  return table("Nodes", headings, entries.map(({ node, vms, worst }) => [h("a", { href: nodeHref(node.key) }, nodeTitle(node.key)), String(vms.length),
    size(node.reserved), size(node.free), size(node.watermark), isUnderPressure(node) ? titled(node.state) : worst === "calm" ? "–" : STATES[worst].title]));
}

// Databases of the displayed nodes, those with problems first, and at most MAX_ROWS.
function vmTables(vms) {
  const shown = sorted(vms).slice(0, MAX_ROWS);
  const headings = [{ text: "Database" }, { text: "Node" }, { text: "Size", number: true }, { text: "Permit", number: true }, { text: "Reserved", number: true }, { text: "State" }];
  const found = table("Databases", headings, shown.map((vm) => [h("a", { href: vmHref(vm.key) }, vm.key), vm.node || nodeTitle(""), size(vm.use), size(vm.permit), size(vm.reserved), reasonOf(vm)]));
  return [found, vms.length > MAX_ROWS ? h("p", { class: "more" }, `and ${(vms.length - MAX_ROWS).toLocaleString("en")} more; filter or search to see them`) : null];
}

function legend() {
  const keys = [["used", "has"], ["reserved", "reserved"], ["asleep", "asleep"], ["other", "other"], ["watermark", "watermark"]];
  return h("span", { class: "legend" }, keys.map(([name, title]) => h("span", { class: `key ${name}` }, title)));
}
