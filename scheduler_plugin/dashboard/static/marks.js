// Draws decisions and migrations on charts: a triangle each, whose explanation is a tooltip.

import { fill, h } from "./dom.js";

const NEAR = 8;
const HALF = 4;
const H23 = { hourCycle: "h23" };

export const timeOf = (each) => new Date(each.at * 1000);

// A uPlot plugin. `decisions()` returns all decisions, the newest first; `chosen()` the one with a vertical line.
export function marks(decisions, chosen, colour) {
  const paint = (chart) => {
    const { ctx, bbox } = chart;
    const ratio = devicePixelRatio;
    ctx.save();
    for (const each of decisions()) {
      const x = chart.valToPos(each.at, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.fillStyle = ctx.strokeStyle = colour(each.denied ? "--denied" : each.isMove ? "--migrating" : "--text");
      ctx.beginPath();
      ctx.moveTo(x - HALF * ratio, bbox.top);
      ctx.lineTo(x + HALF * ratio, bbox.top);
      ctx.lineTo(x, bbox.top + 2 * HALF * ratio);
      ctx.fill();
      if (each === chosen()) { ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke(); }
    }
    ctx.restore();
  };
  return { hooks: { draw: [paint], setCursor: [(chart) => showTip(nearest(chart, decisions()), chart)], destroy: [() => showTip(null)] } };
}

function nearest(chart, decisions) {
  const { left, top } = chart.cursor;
  if (left === null || left < 0 || top < 0) return null;
  let decision = null;
  let best = NEAR;
  for (const each of decisions) {
    const away = Math.abs(chart.valToPos(each.at, "x") - left);
    if (away < best) { best = away; decision = each; }
  }
  return decision;
}

function showTip(decision, chart) {
  const tip = document.getElementById("tip");
  tip.hidden = !decision;
  if (!decision) return;
  fill(tip, h("div", { class: "strong" }, `${timeOf(decision).toLocaleTimeString([], H23)} ${decision.by}${decision.denied ? ", partly denied" : ""}`),
    decision.said.map((each) => h("div", {}, each)));
  const box = chart.over.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(box.left + chart.cursor.left + 14, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${Math.max(8, Math.min(box.top + chart.cursor.top + 14, innerHeight - tip.offsetHeight - 8))}px`;
}

// The same as a list with all explanations, for screen readers. Calls `choose` with the decision under the pointer.
export function decisionList(decisions, limit, choose) {
  const shown = decisions.slice(0, limit);
  const item = (each) => h("li", { class: each.denied ? "denied" : each.isMove ? "migrating" : "", onmouseenter: () => choose(each), onmouseleave: () => choose(null) },
    h("time", { datetime: timeOf(each).toISOString() }, timeOf(each).toLocaleString([], H23)), `${each.by}: ${each.said.join(" ")}`,
    each.denied ? h("strong", {}, " Partly denied.") : null);
  return [h("ul", { class: "decisions" }, shown.map(item)),
    decisions.length > limit ? h("p", { class: "more" }, `and ${decisions.length - limit} more on the charts`) : null];
}
