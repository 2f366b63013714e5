// The view of one node: its amounts, and its databases.

import { CostBox } from "./costs.js";
import { fill, h, table } from "./dom.js";
import { nodesIn } from "./layout.js";
import { movesTable } from "./moves.js";
import { loadingText } from "./status.js";
import { STATES, isActive, isUnderPressure, nodeTitle, reasonOf, size, some, stateOf, vmHref, waitingText } from "./words.js";

export class NodeView {
  constructor(store, [name]) {
    this.store = store;
    this.name = name;
    this.title = nodeTitle(name);
    this.body = h("div", {});
    this.cost = name ? new CostBox("node", name) : null;
    this.element = h("section", { class: "page" }, h("h1", {}, name ? `Node ${name}` : "Databases without a node"), this.body, this.cost ? this.cost.element : []);
  }

  update() {
    if (this.shownVersion === this.store.version) return;
    this.shownVersion = this.store.version;
    const node = nodesIn(this.store).get(this.name);
    if (!node) { fill(this.body, h("p", { class: "empty" }, loadingText(this.store) || "There is no such node.")); return; }
    const vms = [...this.store.rows.vm.values()].filter((vm) => vm.node === this.name)
      .sort((a, b) => b.reserved[0] - a.reserved[0] || a.key.localeCompare(b.key));
    const moves = [...this.store.rows.move.values()]
      .filter((each) => isActive(each) && (each.source === this.name || each.target === this.name));
    const others = [0, 1].map((at) => Math.max(0, node.reserved[at] - vms.reduce((sum, vm) => sum + Math.max(0, vm.reserved[at]), 0)));
    fill(this.body, h("p", { class: isUnderPressure(node) || node.isUnlisted ? "problem" : "" }, statusOf(node)),
      Math.max(...node.denied) > 0 ? h("p", { class: "problem" }, `Databases ${waitingText(node)}.`) : null,
      node.crowded ? h("p", {}, `${node.crowded}.`) : null, node.isUnlisted ? null : amounts(node, others),
      vmTable(vms), moves.length ? movesTable("Migrations from and to this node", moves) : null);
  }

  close() { if (this.cost) this.cost.close(); }
}

function statusOf(node) {
  if (node.isUnlisted) return node.key ? "The scheduler does not list this node, or does not respond." : "These databases wait for a node, or their node is unknown.";
  if (node.stuck) return `VMs should move off this node, but cannot: ${node.stuck}.`;
  if (isUnderPressure(node)) return `${some(node.excess)} above its watermark.`;
  return node.open ? "It accepts new databases." : "It accepts no new databases.";
}

function amounts(node, others) {
  const rows = [["Available to VMs and pods", node.total], ["Reserved", node.reserved], ["of which other than the databases listed here", others],
    ["Free", node.free], ["Watermark", node.watermark]];
  return h("dl", { class: "facts" }, rows.map(([name, pair]) => h("div", {}, h("dt", {}, name), h("dd", {}, size(pair)))));
}

function vmTable(vms) {
  const headings = [{ text: "Database" }, { text: "Phase" }, { text: "Size", number: true }, { text: "Permit", number: true },
    { text: "Reserved", number: true }, { text: "Maximum", number: true }, { text: "State" }];
  return table(`Databases (${vms.length})`, headings, vms.map((vm) => [
    h("a", { href: vmHref(vm.key) }, vm.key), vm.phase, size(vm.use), size(vm.permit), size(vm.reserved), size(vm.most),
    h("span", { class: `tag ${stateOf(vm)}` }, stateOf(vm) === "calm" ? "–" : `${STATES[stateOf(vm)].mark} ${reasonOf(vm)}`)]));
}
