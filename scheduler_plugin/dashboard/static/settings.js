// The view of the scheduler's settings in force.

import { fill, h, table } from "./dom.js";

export class SettingsView {
  constructor() {
    this.title = "Settings in force";
    this.body = h("div", {}, "Loading …");
    this.element = h("section", { class: "page" }, h("h1", {}, "Settings in force"), this.body);
    this.load();
  }

  async load() {
    try {
      const response = await fetch("api/settings");
      const settings = response.ok ? await response.json() : null;
      if (!settings) fill(this.body, h("p", { class: "empty" }, "The scheduler does not respond, or you are not allowed to see its settings."));
      else fill(this.body, table("The scheduler's settings", [{ text: "Setting" }, { text: "Value" }], flat("", settings)));
    } catch { fill(this.body, h("p", { class: "problem" }, "The server does not respond.")); }
  }

  update() {}
  close() {}
}

function flat(path, value) {
  if (value === null || typeof value !== "object") return [[h("code", {}, path), value === null ? "–" : String(value)]];
  const parts = Array.isArray(value) ? value.map((each, at) => [`${path}[${at}]`, each])
    : Object.entries(value).map(([name, each]) => [path ? `${path}.${name}` : name, each]);
  return parts.length ? parts.flatMap(([name, each]) => flat(name, each)) : [[h("code", {}, path), "none"]];
}
