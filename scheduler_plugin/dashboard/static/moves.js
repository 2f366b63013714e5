// The view of migrations: the current and the recent ones.

import { fill, h, table } from "./dom.js";
import { waitsFor } from "./standing.js";
import { isUnderWay, nodeHref, vmHref } from "./words.js";

export class MovesView {
  constructor(store) {
    this.store = store;
    this.title = "Migrations";
    this.body = h("div", {});
    this.element = h("section", { class: "page" }, h("h1", {}, "Migrations"), this.body);
  }

  update() {
    const moves = [...this.store.rows.move.values()].sort((a, b) => (a.started < b.started ? 1 : -1));
    const under = moves.filter(isUnderWay);
    const ended = moves.filter((each) => !isUnderWay(each)).slice(0, 200);
    const waits = waitsFor(this.store);
    fill(this.body, waits ? h("p", { class: "empty" }, waits) : null, movesTable(`Under way (${under.length})`, under), movesTable(`Ended lately (${ended.length})`, ended));
  }

  close() {}
}

export function movesTable(caption, moves) {
  const headings = ["VM", "From", "To", "Phase", "Sent", "Why", "Since"].map((text) => ({ text }));
  const where = (node) => node ? h("a", { href: nodeHref(node) }, node) : "–";
  return table(caption, headings, moves.map((each) => [
    h("a", { href: vmHref(each.vm) }, each.vm), where(each.source), where(each.target),
    h("span", { class: `tag ${each.phase === "Failed" ? "unhealthy" : isUnderWay(each) ? "moving" : ""}` }, each.phase),
    each.progress || "–", each.wait || each.reason || "–", new Date(each.started).toLocaleString(),
  ]));
}

const NEAR = 120; // maximum difference in seconds between a migration's times in the history and in its object

// A VM's migrations, from their objects and from the history, the newest first.
export function movesOf(now, past) {
  const isKnown = (each) => now.some((move) => move.key === each.key || (move.source === each.source && move.target === each.target
    && Date.parse(move.started) / 1000 >= each.since - NEAR && Date.parse(move.started) / 1000 <= each.until + NEAR));
  const over = past.filter((each) => !isKnown(each)).map((each) => ({ ...each, progress: "", started: new Date(each.since * 1000).toISOString() }));
  return [...now, ...over].sort((a, b) => Date.parse(b.started) - Date.parse(a.started));
}

// Migrations as marks on charts.
export function moveMarks(past) {
  return past.map(({ since, until, source, target, phase, reason, downtime }) => ({
    at: since, by: "migration", isMove: true, denied: false,
    said: [`From ${source || "?"} to ${target || "?"}: ${phase} after ${Math.round(until - since)} s${downtime === null ? "" : `, ${downtime} ms stopped`}.`, reason].filter(Boolean),
  }));
}
