// The view of current and recent migrations.

import { fill, h, table } from "./dom.js";
import { loadingText } from "./status.js";
import { isActive, nodeHref, vmHref } from "./words.js";

export class MovesView {
  constructor(store) {
    this.store = store;
    this.title = "Migrations";
    this.body = h("div", {});
    this.element = h("section", { class: "page" }, h("h1", {}, "Migrations"), this.body);
  }

  update() {
    const moves = [...this.store.rows.move.values()].sort((a, b) => (a.started < b.started ? 1 : -1));
    const active = moves.filter(isActive);
    const ended = moves.filter((each) => !isActive(each)).slice(0, 200);
    const loading = loadingText(this.store);
    fill(this.body, loading ? h("p", { class: "empty" }, loading) : null, movesTable(`In progress (${active.length})`, active), movesTable(`Recent (${ended.length})`, ended));
  }

  close() {}
}

export function movesTable(caption, moves) {
  const headings = ["VM", "From", "To", "Phase", "Progress", "Reason", "Started"].map((text) => ({ text }));
  const where = (node) => node ? h("a", { href: nodeHref(node) }, node) : "–";
  return table(caption, headings, moves.map((each) => [
    h("a", { href: vmHref(each.vm) }, each.vm), where(each.source), where(each.target),
    h("span", { class: `tag ${each.phase === "Failed" ? "unhealthy" : isActive(each) ? "moving" : ""}` }, each.phase),
    each.progress || "–", each.wait || each.reason || "–", new Date(each.started).toLocaleString(),
  ]));
}

const NEAR = 120; // maximum difference in seconds between a migration's times in the history and in its object

// A VM's migrations, from their objects and from the history, the newest first.
export function mergedMoves(now, past) {
  const isKnown = (each) => now.some((move) => move.key === each.key || (move.source === each.source && move.target === each.target
    && Date.parse(move.started) / 1000 >= each.since - NEAR && Date.parse(move.started) / 1000 <= each.until + NEAR));
  const over = past.filter((each) => !isKnown(each)).map((each) => ({ ...each, progress: "", started: new Date(each.since * 1000).toISOString() }));
  return [...now, ...over].sort((a, b) => Date.parse(b.started) - Date.parse(a.started));
}

// Migrations as marks on charts.
export function moveMarks(past) {
  return past.map(({ since, until, source, target, phase, reason, downtime }) => ({
    at: since, by: "migration", isMove: true, denied: false,
    said: [`From ${source || "?"} to ${target || "?"}: ${phase} after ${Math.round(until - since)} s${downtime === null ? "" : `, downtime ${downtime} ms`}.`, reason].filter(Boolean),
  }));
}
