// Signs in, receives the server's events, and shows the view of the URL.

import { CostsView } from "./costs.js";
import { fill, h, setText } from "./dom.js";
import { FleetView } from "./fleet.js";
import { GroupView, GroupsView } from "./groups.js";
import { MovesView } from "./moves.js";
import { NodeView } from "./node.js";
import { SettingsView } from "./settings.js";
import { signIn } from "./signin.js";
import { connectionOf, statusSentences } from "./status.js";
import { Store } from "./store.js";
import { VmView } from "./vm.js";

const VIEWS = [
  ["", "Fleet", FleetView],
  ["migrations", "Migrations", MovesView],
  ["groups", "Groups", GroupsView],
  ["costs", "Costs", CostsView],
  ["settings", "Settings", SettingsView],
];
const DETAILS = { vm: VmView, node: NodeView, group: GroupView };
const byId = (id) => document.getElementById(id);
const store = new Store();
let view = null;
let isScheduled = false;

function route() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(decoded);
  const listed = VIEWS.find(([path]) => path === name);
  const View = listed ? listed[2] : Object.hasOwn(DETAILS, name) ? DETAILS[name] : FleetView;
  for (const link of byId("nav").children) {
    const isHere = link.getAttribute("href") === `#/${listed ? name : ""}` && Boolean(listed);
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (view) view.close();
  view = new View(store, rest);
  fill(byId("main"), view.element);
  document.title = `${view.title} · Autoscaling`;
  view.update();
  byId("main").scrollTop = 0;
}

function decoded(part) {
  try { return decodeURIComponent(part); } catch { return part; }
}

function scheduleUpdate() {
  if (isScheduled) return;
  isScheduled = true;
  requestAnimationFrame(() => { isScheduled = false; if (view) view.update(); showStatus(); });
}

function showStatus() {
  const [state, text] = view ? connectionOf(store) : ["waits", ""];
  byId("link").dataset.state = state;
  byId("link").hidden = !view;
  setText(byId("link-text"), text);
  const sentences = view ? statusSentences(store) : [];
  setText(byId("banner"), sentences.join(" "));
  byId("banner").dataset.state = state === "lost" ? "lost" : "note";
  byId("banner").hidden = sentences.length === 0;
}

async function recheckSession() {
  try {
    const response = await fetch("api/session");
    if (view && response.ok && !(await response.json()).signedIn) endSession();
  } catch { /* no response; the store retries */ }
}

async function signOut() {
  const headers = { "Content-Type": "application/json" };
  const isSignedOut = await fetch("api/session", { method: "DELETE", headers }).then((response) => response.ok, () => false);
  if (!isSignedOut) { setText(byId("out"), "Sign-out failed; try again"); return; }
  history.replaceState(null, "", location.pathname);
  if (view) endSession();
}

// Ends the session: clears everything that it showed, and stops its requests.
function endSession() {
  store.reset();
  view.close();
  view = null;
  FleetView.reset();
  fill(byId("nav"));
  fill(byId("main"));
  setText(byId("title"), "");
  byId("tip").hidden = true;
  document.title = "Autoscaling";
  start();
}

async function start() {
  byId("out").hidden = true;
  showStatus();
  const session = await signIn(byId("main"));
  setText(byId("title"), session.title);
  setText(byId("out"), "Sign out");
  byId("out").hidden = false;
  fill(byId("nav"), VIEWS.map(([path, title]) => h("a", { href: `#/${path}` }, title)));
  store.open();
  route();
  showStatus();
}

function useTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  if (view) view.update();
}

byId("theme").addEventListener("click", () => {
  const isDark = getComputedStyle(document.documentElement).getPropertyValue("--is-dark").trim() === "1";
  const theme = isDark ? "light" : "dark";
  try { localStorage.setItem("theme", theme); } catch { /* it lasts until the page is closed */ }
  useTheme(theme);
});
try { useTheme(localStorage.getItem("theme")); } catch { /* the system's theme */ }
byId("out").addEventListener("click", signOut);
addEventListener("hashchange", () => { if (view) route(); });
document.addEventListener("visibilitychange", () => store.followVisibility());
store.addEventListener("change", scheduleUpdate);
store.addEventListener("link", scheduleUpdate);
store.addEventListener("refused", recheckSession);
start();
