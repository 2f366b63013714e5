// The views of groups: a table of all, and one group with the explanation of its number of replicas.

import { CostBox } from "./costs.js";
import { fill, h, table } from "./dom.js";
import { loadingText } from "./status.js";
import { groupHref, size, stateOf, vmHref } from "./words.js";

const number = (value) => value < 0 ? "–" : String(value);

export class GroupsView {
  constructor(store) {
    this.store = store;
    this.title = "Groups";
    this.body = h("div", {});
    this.element = h("section", { class: "page" }, h("h1", {}, "Groups"), this.body);
  }

  update() {
    const groups = [...this.store.rows.group.values()].sort((a, b) => a.key.localeCompare(b.key));
    const headings = [{ text: "Group" }, { text: "Kind" }, { text: "Replicas", number: true },
      { text: "Desired", number: true }, { text: "Reason" }];
    fill(this.body, groups.length === 0
      ? h("p", { class: "empty" }, loadingText(this.store) || "There are no groups: no VirtualMachineGroup, Hvpa or Tortoise that you may see.")
      : table(`Groups (${groups.length})`, headings, groups.map((each) => [
        h("a", { href: groupHref(each.key) }, each.name), each.kind, number(each.replicas), number(each.desired),
        h("span", { class: each.healthy ? "" : "problem" }, each.because || "–")])));
  }

  close() {}
}

export class GroupView {
  constructor(store, [kind, namespace, name]) {
    this.store = store;
    Object.assign(this, { kind, namespace, name });
    this.title = name || "Group";
    this.facts = h("div", {});
    this.explanation = h("pre", { class: "explanation", tabindex: "0" }, "Loading …");
    this.cost = kind === "VirtualMachineGroup" ? new CostBox("group", `${namespace}/${name}`) : null;
    this.element = h("section", { class: "page" }, h("h1", {}, `${kind} ${namespace}/${name}`), this.facts,
      h("h2", {}, "Explanation"), this.explanation, this.cost ? this.cost.element : []);
    this.load();
  }

  async load() {
    const path = [this.namespace, this.kind, this.name].map(encodeURIComponent).join("/");
    try {
      const response = await fetch(`api/groups/${path}`);
      const account = response.ok ? await response.json() : null;
      this.explanation.textContent = account ? JSON.stringify(account, null, 2)
        : "autoscale-groups does not respond, or has no such group.";
    } catch { this.explanation.textContent = "The server does not respond."; }
  }

  update() {
    const group = this.store.rows.group.get(`${this.kind}/${this.namespace}/${this.name}`);
    const members = [...this.store.rows.vm.values()]
      .filter((vm) => vm.group === this.name && vm.namespace === this.namespace)
      .sort((a, b) => a.key.localeCompare(b.key));
    const headings = [{ text: "Database" }, { text: "Node" }, { text: "Phase" }, { text: "Size" }, { text: "State" }];
    fill(this.facts, group ? h("p", {}, `${number(group.replicas)} replicas, ${number(group.desired)} desired. ${group.because}`)
      : h("p", { class: "empty" }, loadingText(this.store) || "There is no such group."),
    members.length ? table(`Members (${members.length})`, headings, members.map((vm) => [
      h("a", { href: vmHref(vm.key) }, vm.key), vm.node || "–", vm.phase, size(vm.use), stateOf(vm)])) : null);
  }

  close() { if (this.cost) this.cost.close(); }
}
