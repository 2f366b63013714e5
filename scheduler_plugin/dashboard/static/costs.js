// Costs of databases, as in `autoscale cost`: a table of all, and figures for one database, node or group.

import { fill, h, table } from "./dom.js";
import { count, groupHref, nodeHref, vmHref } from "./words.js";

const REFRESH_INTERVAL = 60000;
const SPANS = [["1 h", 3600], ["6 h", 21600], ["1 d", 86400], ["7 d", 604800], ["30 d", 2592000]];
const KINDS = ["namespace", "group", "node", "vm"];
const HREFS = { vm: vmHref, node: nodeHref, group: (key) => groupHref(`VirtualMachineGroup/${key}`) };
const titleOf = (by) => by === "vm" ? "database" : by;
const NONE = "(none)";
const NO_RESPONSE = "The server does not respond.";
const NO_HISTORY = "No costs: there is no history, or it cannot be read.";
const selection = { by: "namespace", seconds: 86400 };

export const money = (value) => value === null ? "–" : value.toFixed(Math.abs(value) >= 100 ? 2 : 4);
const hours = (value) => value === null ? "–" : value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const unmatched = (found) => found.unusedPrices.length
  ? ` ${found.unusedPrices.length} of its keys match no node of this period: ${found.unusedPrices.slice(0, 5).join(", ")}.` : "";
const slept = (total) => !total.asleep_hours ? "" : ` Sleep saved ${money(total.sleep_saved)} of that against the minimum sizes; VMs slept ${total.asleep_hours.toFixed(2)} h in total.`;
const prices = (found) => `Prices: ${found.prices} (per hour, in the currency of the price table).`;

const usePart = (line) => line.use_known_hours > 0 && line.use_known_hours < 0.995 * line.known_hours
  ? ` of the ${money(line.use_known_cost)} reserved while its use was recorded (${Math.round(100 * line.use_known_hours / line.known_hours)} % of the time)` : "";

export async function fetchCosts(seconds, by, only = "") {
  const query = new URLSearchParams({ seconds, by, ...(only ? { only } : {}) });
  return fetch(`api/costs?${query}`).then((response) => response.ok ? response.json() : null).then((found) => found && found.kept ? found : null).catch(() => undefined);
}

// Costs of one database, node or group, as a section of its view.
export class CostBox {
  constructor(by, only, seconds = 86400) {
    Object.assign(this, { by, only, seconds });
    this.element = h("section", { "aria-label": "Cost" });
    this.load(seconds);
    this.timer = setInterval(() => { if (!document.hidden) this.load(this.seconds); }, REFRESH_INTERVAL);
  }

  async load(seconds) {
    this.seconds = seconds;
    const found = await fetchCosts(seconds, this.by, this.only);
    if (this.seconds === seconds) fill(this.element, h("h2", {}, `Cost of the last ${spanText(seconds)}`), figures(found));
  }

  close() { clearInterval(this.timer); }
}

function spanText(seconds) {
  const [many, unit] = seconds < 3600 ? [seconds / 60, "minute"] : seconds < 86400 ? [seconds / 3600, "hour"] : [seconds / 86400, "day"];
  return count(many, unit);
}

function figures(found) {
  if (!found) return h("p", { class: "empty" }, found === undefined ? NO_RESPONSE : NO_HISTORY);
  const [line] = found.lines;
  if (!line) return h("p", { class: "empty" }, "The history has no data for this time range.");
  const rows = [["Reserved", `${money(line.reserved_cost)} for ${hours(line.reserved_cpu_hours)} vCPU-h, ${hours(line.reserved_gib_hours)} GiB-h`],
    ["Used", `${money(line.used_cost)}${usePart(line)}`],
    ["At its maximum", `${money(line.max_cost)}, saved ${money(line.saved)}`],
    ["At P99.5 of its need", `${money(line.p99_5_cost)}, saved ${money(line.saved_against_p99_5)}`]];
  const unknown = line.unknown_hours > 0.005 ? ` ${hours(line.unknown_hours)} h were not observed, and count as free.` : "";
  return [h("dl", { class: "facts" }, rows.map(([name, text]) => h("div", {}, h("dt", {}, name), h("dd", {}, text)))),
    h("p", { class: "hint" }, `${prices(found)}${unknown}`)];
}

export class CostsView {
  constructor() {
    this.title = "Costs";
    this.body = h("div", {}, "Loading …");
    this.keys = [...KINDS];
    this.kinds = KINDS.map((by) => this.kindOf(by));
    this.spans = SPANS.map(([title, seconds]) => h("button", { type: "button", onclick: () => this.load({ seconds }) }, title));
    this.element = h("section", { class: "page" }, h("h1", {}, "Costs"),
      h("div", { class: "choices" }, h("span", { class: "pair", role: "group", "aria-label": "By" }, this.kinds),
        h("span", { class: "pair", role: "group", "aria-label": "Time range" }, this.spans)), this.body);
    this.load({});
    this.timer = setInterval(() => { if (!document.hidden) this.load({}); }, REFRESH_INTERVAL);
  }

  kindOf(by) {
    return h("button", { type: "button", "aria-pressed": String(selection.by === by), onclick: () => this.load({ by }) }, titleOf(by));
  }

  // Adds a button for each label whose values the history records.
  addLabels(labels) {
    for (const by of labels.map((label) => `label=${label}`).filter((each) => !this.keys.includes(each))) {
      this.keys.push(by);
      this.kinds.push(this.kindOf(by));
      this.element.querySelector("[aria-label=By]").append(this.kinds.at(-1));
    }
  }

  async load(change) {
    Object.assign(selection, change);
    const { by, seconds } = selection;
    this.kinds.forEach((button, at) => button.setAttribute("aria-pressed", String(this.keys[at] === by)));
    this.spans.forEach((button, at) => button.setAttribute("aria-pressed", String(SPANS[at][1] === seconds)));
    const found = await fetchCosts(seconds, by);
    if (found) this.addLabels(found.labels);
    if (selection.by === by && selection.seconds === seconds) fill(this.body, found ? billOf(found) : h("p", { class: "empty" }, found === undefined ? NO_RESPONSE : NO_HISTORY));
  }

  update() {}
  close() { clearInterval(this.timer); }
}

function billOf(found) {
  const numbers = ["vCPU-h", "GiB-h", "Cost", "Used", "At max", "Saved", "At P99.5", "Saved", "Unknown h"];
  const headings = [{ text: titleOf(found.by) }, ...numbers.map((text) => ({ text, number: true }))];
  const cells = (each) => [hours(each.reserved_cpu_hours), hours(each.reserved_gib_hours), money(each.reserved_cost), money(each.used_cost),
    money(each.max_cost), money(each.saved), money(each.p99_5_cost), money(each.saved_against_p99_5), hours(each.unknown_hours)];
  const href = HREFS[found.by];
  const name = (each) => href && each.name !== NONE ? h("a", { href: href(each.name) }, each.name) : each.name;
  const share = found.total.max_cost > 0 ? ` (${Math.round(100 * found.total.saved / found.total.max_cost)} %)` : "";
  return [h("p", {}, `Scaling saved ${money(found.total.saved)}${share} against the maximum sizes.${slept(found.total)} ${prices(found)}${unmatched(found)}`),
    usePart(found.total) ? h("p", { class: "hint" }, `Guests used ${money(found.total.used_cost)}${usePart(found.total)}.`) : null,
    table(`Costs by ${titleOf(found.by)}`, headings, [...found.lines.map((each) => [name(each), ...cells(each)]),
      [h("strong", {}, "total"), ...cells(found.total)]]),
    found.others ? h("p", { class: "more" }, `and ${found.others} more, included in the total`) : null];
}
