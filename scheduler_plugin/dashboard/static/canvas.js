// Draws the fleet on a canvas. Blocks move smoothly to new positions; only visible ones are drawn, and only when something changes.

import { STATES, isUnderPressure, nodeTitle, stateOf } from "./words.js";

const GLIDE = 140; // time constant of the movement in milliseconds
const NEAR = 0.4;

export class FleetCanvas {
  constructor(scroller) {
    this.scroller = scroller;
    this.canvas = scroller.querySelector("canvas");
    this.pen = this.canvas.getContext("2d");
    this.places = new Map();
    this.layout = { cells: [], height: 0 };
    this.selected = "";
    this.frames = 0;
    this.last = 0;
    this.frameRequest = 0;
    this.isStill = matchMedia("(prefers-reduced-motion: reduce)");
  }

  show(layout, resource, selected) {
    Object.assign(this, { layout, resource, selected });
    const present = new Set();
    for (const cell of layout.cells) {
      for (const block of cell.blocks) {
        present.add(block.vm.key);
        const place = this.places.get(block.vm.key);
        if (place) Object.assign(place, { cell, block });
        else this.places.set(block.vm.key, { cell, block, x: block.x, y: cell.y + cell.label, width: 0, used: 0 });
      }
    }
    for (const key of this.places.keys()) if (!present.has(key)) this.places.delete(key);
    this.requestDraw();
  }

  requestDraw() {
    if (!this.frameRequest) this.frameRequest = requestAnimationFrame((now) => { this.frameRequest = 0; this.draw(now); });
  }

  fit() {
    const ratio = devicePixelRatio || 1;
    const { clientWidth: width, clientHeight: height } = this.scroller;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
    }
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    return { width, height };
  }

  draw(now) {
    const { width, height } = this.fit();
    const part = this.isStill.matches ? 1 : 1 - Math.exp(-Math.min(100, now - this.last) / GLIDE);
    const colours = palette();
    const top = this.scroller.scrollTop;
    this.last = now;
    this.frames += 1;
    this.pen.clearRect(0, 0, width, height);
    this.pen.save();
    this.pen.translate(0, -top);
    const isVisible = (y, extent) => y + extent >= top && y <= top + height;
    for (const cell of this.layout.cells) if (isVisible(cell.y, cell.label + cell.bar)) this.drawCell(cell, colours);
    const moves = this.drawBlocks(part, isVisible, colours);
    this.pen.restore();
    if (moves) this.requestDraw();
  }

  drawCell(cell, colours) {
    const { pen } = this;
    const y = cell.y + cell.label;
    const full = isUnderPressure(cell.node);
    pen.fillStyle = full ? colours["over-watermark"] : colours.muted;
    pen.font = `${cell.bar > 12 ? 12 : 10.5}px ui-sans-serif, system-ui, sans-serif`;
    pen.textBaseline = "alphabetic";
    const share = cell.node.isUnlisted ? "?" : `${Math.round((100 * cell.node.reserved[this.resource]) / Math.max(1, cell.node.total[this.resource]))} %`;
    const room = cell.width - pen.measureText(share).width - 8;
    pen.fillText(truncated(pen, `${full ? "▲ " : ""}${cell.node.open ? "" : "⊘ "}${nodeTitle(cell.node.key)}`, room), cell.x, y - 4);
    pen.fillText(share, cell.x + cell.width - pen.measureText(share).width, y - 4);
    pen.fillStyle = colours.free;
    pen.fillRect(cell.x, y, cell.total, cell.bar);
    if (cell.isAggregated) this.drawSums(cell, y, colours);
    if (cell.crowd) this.drawOutline(cell.crowd.x, y, cell.crowd.width, cell.bar, colours.asleep);
    pen.fillStyle = colours.other;
    pen.fillRect(cell.otherAt, y, cell.other, cell.bar);
    pen.fillStyle = full ? colours["over-watermark"] : colours.watermark;
    if (cell.mark !== null) pen.fillRect(cell.mark - 1, y - 2, 2, cell.bar + 4);
    if (this.selected === `node/${cell.node.key}`) this.outline(cell.x - 2, y - 2, cell.width + 4, cell.bar + 4, colours.focus);
  }

  drawSums(cell, y, colours) {
    const reservedWidth = cell.otherAt - cell.x;
    const used = cell.blocks.reduce((sum, each) => sum + each.used, 0);
    this.pen.fillStyle = colours.reserved;
    this.pen.fillRect(cell.x, y, reservedWidth, cell.bar);
    this.pen.fillStyle = colours.used;
    this.pen.fillRect(cell.x, y + cell.bar / 4, used, cell.bar / 2);
    if (cell.worst !== "calm") { this.pen.fillStyle = colours[cell.worst]; this.pen.fillRect(cell.x, y + cell.bar - 3, reservedWidth, 3); }
  }

  drawBlocks(part, isVisible, colours) {
    let moves = false;
    for (const place of this.places.values()) {
      const { cell, block } = place;
      const y = cell.y + cell.label;
      const gap = Math.abs(block.x - place.x) + Math.abs(y - place.y) + Math.abs(block.width - place.width) + Math.abs(block.used - place.used);
      if (gap < NEAR) { place.x = block.x; place.y = y; place.width = block.width; place.used = block.used; }
      else {
        place.x += (block.x - place.x) * part; place.y += (y - place.y) * part;
        place.width += (block.width - place.width) * part; place.used += (block.used - place.used) * part;
        moves ||= isVisible(place.y, cell.bar) || isVisible(y, cell.bar);
      }
      if (!cell.isAggregated && isVisible(place.y, cell.bar)) this.drawBlock(place, cell.bar, colours);
    }
    return moves;
  }

  drawBlock({ x, y, width, used, block }, bar, colours) {
    const { pen } = this;
    const line = width > 4 ? 1 : 0.5;
    const state = stateOf(block.vm);
    pen.globalAlpha = block.isMatch ? 1 : 0.18;
    if (block.isOutline) this.drawOutline(x, y, width - line, bar, colours[state] || colours.muted);
    else this.drawFilled({ x, y, width, used, line, state }, bar, colours);
    if (bar >= 30 && width > 54) {
      pen.fillStyle = block.isOutline ? colours.muted : state === "calm" ? colours.onBlock : colours.ground; // highlighted blocks are light in the dark theme, and dark in the light one
      pen.font = "11px ui-sans-serif, system-ui, sans-serif";
      pen.fillText(truncated(pen, block.vm.key.slice(block.vm.key.indexOf("/") + 1), width - 10), x + 5, y + bar / 2 + 4);
    }
    pen.globalAlpha = 1;
    if (this.selected === `vm/${block.vm.key}`) this.outline(x, y - 1, width, bar + 2, colours.focus);
  }

  drawFilled({ x, y, width, used, line, state }, bar, colours) {
    const { pen } = this;
    pen.fillStyle = state === "calm" ? colours.reserved : colours[`${state}Soft`];
    pen.fillRect(x, y, Math.max(0.5, width - line), bar);
    pen.fillStyle = state === "calm" ? colours.used : colours[state];
    pen.fillRect(x, y, Math.max(0.5, Math.min(used, width) - line), bar);
  }

  // The outline of a sleeping VM: it reserves nothing there.
  drawOutline(x, y, width, bar, colour) {
    this.pen.strokeStyle = colour;
    this.pen.lineWidth = 1;
    this.pen.setLineDash([3, 2]);
    this.pen.strokeRect(x + 0.5, y + 0.5, Math.max(0.5, width - 1), bar - 1);
    this.pen.setLineDash([]);
  }

  outline(x, y, width, height, colour) {
    this.pen.strokeStyle = colour;
    this.pen.lineWidth = 2;
    this.pen.strokeRect(x, y, width, height);
  }
}

function truncated(pen, text, room) {
  if (pen.measureText(text).width <= room) return text;
  let low = 0;
  let high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (pen.measureText(`${text.slice(0, middle)}…`).width <= room) low = middle; else high = middle - 1;
  }
  return low ? `${text.slice(0, low)}…` : "";
}

const FLAGGED_STATES = Object.keys(STATES).filter((state) => state !== "calm");
const NAMES = ["muted", "free", "other", "reserved", "used", "watermark", "over-watermark", "focus", "ground", ...FLAGGED_STATES];

function palette() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(`--${name}`).trim();
  const colours = Object.fromEntries(NAMES.map((name) => [name, of(name)]));
  for (const state of FLAGGED_STATES) colours[`${state}Soft`] = of(`${state}-soft`);
  return { ...colours, onBlock: of("on-block") };
}
