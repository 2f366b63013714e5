// Positions of nodes and of their databases' blocks. Does not use the canvas.

import { STATES, isSleeper, isUnderPressure, nodeTitle, stateOf } from "./words.js";

// Zoom levels, smallest first. If blocks would be narrower than MIN_BLOCK on average, only the node's totals are drawn.
export const ZOOMS = [
  { column: 132, bar: 10, label: 14, gap: 6 },
  { column: 250, bar: 24, label: 17, gap: 10 },
  { column: 420, bar: 38, label: 18, gap: 12 },
  { column: 760, bar: 54, label: 20, gap: 14 },
];
export const MIN_BLOCK = 2.5;
const MARGIN = 12;

export function defaultZoom(nodes) {
  return nodes > 240 ? 0 : nodes > 24 ? 1 : 2;
}

export function accepts(filter, vm) {
  if (filter.namespace && vm.namespace !== filter.namespace) return false;
  if (filter.group && vm.group !== filter.group) return false;
  if (filter.state && filter.state !== "over-watermark" && stateOf(vm) !== filter.state) return false;
  return contains(filter.text, vm.key) || contains(filter.text, vm.node || nodeTitle(""));
}

// Ignores case.
const contains = (text, name) => name.toLowerCase().includes(text.toLowerCase());

export function isRestrictive(filter) {
  return Boolean(filter.namespace || filter.group || filter.text || (filter.state && filter.state !== "over-watermark"));
}

// All nodes that the scheduler lists. Nodes that it does not list are added, with the totals of their databases.
export function nodesIn(store) {
  const nodes = new Map(store.rows.node);
  for (const vm of store.rows.vm.values()) {
    const listed = nodes.get(vm.node);
    if (listed && !listed.isUnlisted) continue;
    const node = listed || { key: vm.node, isUnlisted: true, total: [0, 0], reserved: [0, 0], free: UNKNOWN, watermark: UNKNOWN, excess: [0, 0], denied: [0, 0], promised: [0, 0], open: true, stuck: "", state: "calm" };
    node.total = node.reserved = node.reserved.map((sum, resource) => sum + heldBy(vm, resource));
    nodes.set(vm.node, node);
  }
  return nodes;
}

const UNKNOWN = [-1, -1];
const heldBy = (vm, resource) => Math.max(vm.reserved[resource], vm.use[resource], vm.permit[resource], 0);

// Sorted nodes with their databases. A filter removes nodes without a match.
export function nodesOf(store, filter) {
  const nodes = new Map();
  for (const node of nodesIn(store).values()) nodes.set(node.key, { node, vms: [], hits: 0, worst: "calm", matches: new Set() });
  const restrictive = isRestrictive(filter);
  for (const vm of store.rows.vm.values()) {
    const entry = nodes.get(vm.node);
    entry.vms.push(vm);
    if (!restrictive || accepts(filter, vm)) { entry.hits += 1; entry.matches.add(vm.key); }
    const state = stateOf(vm);
    if (STATES[state].isProblem && ORDER.indexOf(state) < ORDER.indexOf(entry.worst)) entry.worst = state;
  }
  return [...nodes.values()]
    .filter((each) => (!restrictive || each.hits > 0 || (filter.text && contains(filter.text, each.node.key || nodeTitle(""))))
      && (filter.state !== "over-watermark" || isUnderPressure(each.node)) && (!filter.node || each.node.key === filter.node))
    .sort((a, b) => compare(a.node.key, b.node.key));
}

const ORDER = Object.keys(STATES);
const parts = new Intl.Collator("en", { numeric: true });
const compare = (a, b) => parts.compare(a, b);

// Arranges the nodes in columns of cells. A cell has the blocks of the node's databases, from the left.
export function layoutOf(entries, width, zoom, resource) {
  const { column, bar, label, gap } = ZOOMS[zoom];
  const columns = Math.max(1, Math.floor((width - MARGIN) / (column + MARGIN)));
  const inner = Math.floor((width - MARGIN) / columns) - MARGIN;
  const height = label + bar + gap;
  const cells = entries.map((entry, at) => {
    const x = MARGIN + (at % columns) * (inner + MARGIN);
    const y = gap + Math.floor(at / columns) * height;
    return cellOf(entry, { x, y, width: inner, label, bar, resource });
  });
  return { cells, columns, height: gap + Math.ceil(entries.length / columns) * height, row: height };
}

function cellOf(entry, { x, y, width, label, bar, resource }) {
  const total = Math.max(1, entry.node.total[resource]);
  const scale = width / Math.max(total, entry.node.reserved[resource]);
  entry.vms.sort((a, b) => compare(a.key, b.key));
  let at = x;
  const awake = entry.vms.filter((vm) => !isSleeper(vm) || heldBy(vm, resource) > 0);
  const blocks = awake.map((vm) => {
    const width = heldBy(vm, resource) * scale || MIN_BLOCK; // a database whose amounts are unknown is drawn, too
    const block = { vm, x: at, width, used: Math.max(0, vm.use[resource]) * scale, isMatch: entry.matches.has(vm.key) };
    at += block.width;
    return block;
  });
  const other = Math.max(0, x + entry.node.reserved[resource] * scale - at);
  const isAggregated = blocks.length > 0 && (at - x) / blocks.length < MIN_BLOCK;
  const sleepers = outlined(entry, awake, { x: at + other, end: x + width, scale, resource });
  const extent = sleepers.reduce((sum, block) => sum + block.width, 0);
  const isCrowd = sleepers.length > 0 && (isAggregated || extent / sleepers.length < MIN_BLOCK);
  return { ...entry, x, y, width, label, bar, blocks: isCrowd ? blocks : [...blocks, ...sleepers],
    crowd: isCrowd ? { x: at + other, width: Math.max(MIN_BLOCK, extent) } : null,
    other, otherAt: at, scale, total: total * scale, isAggregated,
    mark: entry.node.watermark[resource] < 0 ? null : x + entry.node.watermark[resource] * scale };
}

// Sleeping VMs reserve nothing: they are drawn as outlines in the free space, narrower if there is too little of it.
function outlined(entry, awake, { x, end, scale, resource }) {
  const drawn = new Set(awake);
  const vms = entry.vms.filter((vm) => !drawn.has(vm));
  const wanted = vms.reduce((sum, vm) => sum + vm.wakes[resource] * scale, 0);
  const part = wanted > 0 ? Math.min(1, Math.max(0, end - x) / wanted) : 0;
  let at = x;
  return vms.map((vm) => {
    const block = { vm, x: at, width: vm.wakes[resource] * scale * part, used: 0, isMatch: entry.matches.has(vm.key), isOutline: true };
    at += block.width;
    return block;
  });
}

export function cellAt(layout, x, y) {
  return layout.cells.find((each) => x >= each.x && x <= each.x + each.width && y >= each.y && y <= each.y + each.label + each.bar);
}

export function blockAt(cell, x) {
  return cell.isAggregated ? undefined : cell.blocks.find((each) => x >= each.x && x < each.x + each.width);
}
