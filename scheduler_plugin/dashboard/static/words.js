// Texts for amounts, names and states: the same as in the terminal.

import { NODE_STATES, VM_STATES } from "./states.js"; // made by the program

export const cpu = (milli) => milli < 0 ? "–" : String(Math.ceil(milli / 10) / 100);
export const mem = (mib) => mib < 0 ? "–" : mib >= 10240 || (mib >= 1024 && mib % 1024 === 0)
  ? `${trim(mib / 1024)} GiB` : `${mib} MiB`;
export const size = ([milli, mib]) => milli < 0 ? "–" : `${cpu(milli)} vCPU, ${mem(mib)}`;
export const some = ([milli, mib]) => [milli > 0 ? `${cpu(milli)} vCPU` : "", mib > 0 ? mem(mib) : ""].filter(Boolean).join(" and ") || "nothing";
export const amount = (pair, resource) => resource === 0 ? `${cpu(pair[0])} vCPU` : mem(pair[1]);
export const count = (many, one, several) => `${many.toLocaleString("en")} ${many === 1 ? one : several || `${one}s`}`;
const trim = (value) => value.toFixed(1).replace(/\.0$/, "");

export const vmHref = (key) => `#/vm/${key.split("/").map(encodeURIComponent).join("/")}`;
export const nodeTitle = (key) => key || "without a node";
export const nodeHref = (key) => `#/node/${encodeURIComponent(key)}`;
export const groupHref = (key) => `#/group/${key.split("/").map(encodeURIComponent).join("/")}`;

const ENDED = new Set(["Succeeded", "Failed", "Cancelled"]);
export const isActive = (move) => !ENDED.has(move.phase);

export const titled = (state) => state.replaceAll("-", " ");
// States that indicate problems, the worst first. A database or node has at most one of these.
export const STATES = Object.fromEntries([...VM_STATES.map(({ word, mark, is_problem: isProblem }) => [word, { title: titled(word), mark, isProblem }]), ["calm", { title: "healthy", mark: "", isProblem: false }]]);
export const NODE_MARKS = Object.fromEntries(NODE_STATES.map(({ word, mark }) => [word, mark]));
export const stateOf = (vm) => vm.state;
// Only sleeping VMs have a size to wake with.
export const isSleeper = (vm) => vm.wakes[0] >= 0;
export const isUnderPressure = (node) => node.state === "cannot-drain" || node.state === "over-watermark";

// Source and target of a migration, or the reason why it waits.
export function routeText(move, node) {
  return move.wait ? `${node || "no node"}, ${move.wait}` : `${move.source || node} ⇢ ${move.target || "?"} ${move.progress}`;
}

// The amount denied to a database, or to all databases of a node, and how much of that neighbours are about to give back.
export const waitingText = ({ denied, promised }) => `waiting for ${some(denied)}${Math.max(...promised) > 0 ? `, ${some(promised)} promised by neighbours` : ""}`;

export function reasonOf(vm) {
  if (vm.problem) return vm.problem;
  if (vm.phase === "Failed") return "failed";
  if (vm.waiting) return "has not started within a minute";
  if (vm.state === "denied") return waitingText(vm);
  if (vm.state === "agent-problem") return vm.trouble;
  if (vm.sleep) return vm.sleep;
  return STATES[stateOf(vm)].title;
}
